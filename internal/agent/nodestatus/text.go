package nodestatus

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// maxListed bounds a list in the overview; the commands for peers and routes, and the other formats, show all of it.
const maxListed = 20

// maxRows bounds a table in the overview.
const maxRows = 50

// WriteStatus writes the overview for people.
func (r *Report) WriteStatus(w io.Writer) error {
	p := &page{}
	p.table(r.summary())
	p.section("Addresses of this host", cutRows(r.candidateTable()))
	p.section("Pools", cutRows(r.poolTable()))
	p.section("Peers", cutRows(r.peerTable()))
	p.lines("Sessions that are down", r.down())
	p.lines("Problems", r.Problems)
	var unacted []string
	for _, f := range r.FieldsWithoutEffect {
		unacted = append(unacted, fmt.Sprintf("%s %s: %s", f.Kind, f.Name, strings.Join(f.Fields, ", ")))
	}
	p.lines("Fields of Calico's without effect", unacted)
	return p.writeTo(w)
}

// WritePeers writes the BGP sessions for people, and below them the last error of each.
func (r *Report) WritePeers(w io.Writer) error {
	p := &page{}
	if len(r.Peers) == 0 {
		p.line("no BGP sessions: this node has no peers yet, or the mesh is off (BGPConfiguration default, spec.nodeToNodeMeshEnabled)")
		return p.writeTo(w)
	}
	p.table(r.peerTable())
	var words, refused, flawed []string
	for _, peer := range r.Peers {
		if text := r.words(peer); text != "" {
			words = append(words, text)
		}
		if text := r.undetected(peer); text != "" {
			words = append(words, text)
		}
		words = append(words, peer.wrongKeys()...)
		refused = append(refused, peer.refusals()...)
		if peer.FlawedMessages > 0 {
			flawed = append(flawed, fmt.Sprintf("%s: %d, the last one: %s", peer.Address, peer.FlawedMessages, peer.LastFlaw))
		}
	}
	p.all("", words)
	p.all("Not taken", refused)
	p.all("Malformed messages", flawed)
	return p.writeTo(w)
}

// WritePicked is WritePeers for one peer, with its counters.
func (r *Report) WritePicked(w io.Writer) error {
	if err := r.WritePeers(w); err != nil {
		return err
	}
	p := &page{}
	var messages, ends []string
	for _, peer := range r.Peers {
		messages = append(messages, peer.messages())
		for _, e := range peer.Ends {
			ends = append(ends, peer.Address+": "+r.endText(e))
		}
	}
	p.all("Messages", messages)
	p.all("How sessions ended, the latest first", ends)
	return p.writeTo(w)
}

// endText describes how a session has ended, with both sides' NOTIFICATIONs.
func (r *Report) endText(e End) string {
	text := r.clock(e.At)
	switch {
	case !e.Since.IsZero():
		text += ", up since " + r.clock(e.Since)
	case e.Times > 1:
		text += fmt.Sprintf(", not up, %d times since %s", e.Times, r.clock(e.First))
	default:
		text += ", not up"
	}
	text += ": " + e.Reason
	for _, said := range []struct{ what, words string }{{"sent", e.Sent}, {"received", e.Received}, {"TCP:", e.Error}} {
		if said.words != "" && !strings.Contains(e.Reason, said.words) {
			text += "; " + said.what + " " + said.words
		}
	}
	return text
}

// WriteRoutes writes the routes for people, and below them the prefixes without one.
func (r *Report) WriteRoutes(w io.Writer) error {
	p := &page{}
	p.line(r.Routes.count())
	rows := [][]string{{"DESTINATION", "VIA", "DEVICE", "METRIC", "NODE", "SOURCE"}}
	for _, route := range r.Routes.List {
		rows = append(rows,
			[]string{route.Destination, cmp.Or(route.Via, route.Type), route.device(), number(route.Metric), dash(route.Node), route.origin()})
	}
	p.section("", rows)
	p.section("Announced", r.announcedTable())
	p.all("Refused", refusalTexts(r.Routes.Refusals))
	p.all("Left to the network between the nodes", refusalTexts(r.Routes.LeftToNetwork))
	if r.Routes.Programmed < r.Routes.Desired {
		p.all("Last error", strings.Split(cmp.Or(r.LastError, "none: the agent has not come to its routes yet"), "\n"))
	}
	return p.writeTo(w)
}

func (r *Report) summary() [][]string {
	rows := [][]string{
		{"Node", fmt.Sprintf("%s, %s", r.Node, r.readiness())},
		{"Agent", fmt.Sprintf("%s, started %s ago", r.Version, r.ago(r.Started))},
		{"Address", r.addressText()},
	}
	if r.Address6 != "" && r.Address != "" {
		rows = append(rows, []string{"", onLink(r.Address6, r.Interface6, r.Address6Source)})
	}
	rows = append(rows, [][]string{
		{"Tunnel", r.tunnelText()},
		{"Pod MTU", orUnknown(r.PodMTU)},
		{"AS number", orUnknown(int(r.ASN))},
		{"Blocks", cmp.Or(strings.Join(r.Blocks, ", "), "none yet: the first pod claims one")},
		{"Services", r.servicesText()},
		{"Reflection", r.reflectionText()},
		{"Policies", r.policiesText()},
		{"Routes", r.Routes.count()},
		{"Paths", r.pathsText(r.Paths)},
		{"IPv6 paths", r.pathsText(r.Paths6)},
		{"Facts", r.factsText()},
		{"Journal", r.journalText()},
	}...)
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	for i, line := range strings.Split(r.passText(), "\n") {
		label := ""
		if i == 0 {
			label = "Last pass"
		}
		rows = append(rows, []string{label, line})
	}
	return rows
}

func (r *Report) readiness() string {
	switch {
	case !r.Ready:
		return "not ready: no pass has succeeded yet"
	case r.LastError != "":
		return "ready, but not in its desired state"
	}
	return "ready"
}

func (r *Report) policiesText() string {
	p := r.Policy
	switch {
	case r.EnforcesPolicies && p != nil:
		text := fmt.Sprintf("enforced: %s with a policy, %d without; %s in the cluster", count(p.Policed, "pod"), p.Open,
			count(p.Policies, "policy", "policies"))
		if p.Waiting != nil {
			text += fmt.Sprintf("; a change has waited for %s", r.ago(*p.Waiting))
		}
		return text
	case p != nil && p.Message != "":
		return "not enforced by this agent: " + p.Message
	}
	return "not enforced: NetworkPolicies restrict nothing"
}

func (r *Report) addressText() string {
	switch {
	case r.Address != "":
		return onLink(r.Address, r.Interface, r.AddressSource)
	case r.Address6 != "":
		return onLink(r.Address6, r.Interface6, r.Address6Source)
	}
	return "not known yet"
}

func onLink(address, link, source string) string {
	return fmt.Sprintf("%s on %s (%s)", address, link, source)
}

// candidateTable returns the host's addresses, and why each was chosen or not.
func (r *Report) candidateTable() [][]string {
	rows := [][]string{{"ADDRESS", "INTERFACE", "USED", "WHY"}}
	for _, c := range r.Candidates {
		rows = append(rows, []string{c.Address, dash(c.Interface), yes(c.Chosen), c.Reason})
	}
	return rows
}

func (r *Report) tunnelText() string {
	switch {
	case r.Address == "" && r.Address6 == "":
		return "not known yet"
	case len(r.Tunnels) == 0:
		return "none: no pool encapsulates"
	}
	texts := make([]string, len(r.Tunnels))
	for i, t := range r.Tunnels {
		address := cmp.Or(t.Address, "no address, as no pool to assign from selects this node")
		texts[i] = fmt.Sprintf("%s, %s, MTU %d", t.Device, address, t.MTU)
		if t.Unencrypted > 0 {
			texts[i] += fmt.Sprintf(", not encrypted to %s (%s)", count(t.Unencrypted, "node", "nodes"), strings.Join(t.UnencryptedNodes, ", "))
		}
		if !t.KeySince.IsZero() {
			texts[i] += fmt.Sprintf(", key %s old", r.ago(t.KeySince))
		}
		if t.KeyChanging {
			texts[i] += ", being changed"
		}
		if len(t.KeyWaitsFor) > 0 {
			texts[i] += " once these take part: " + strings.Join(t.KeyWaitsFor, ", ")
		}
	}
	return strings.Join(texts, "; ")
}

// servicesText returns "" if nothing is announced for services.
func (r *Report) servicesText() string {
	s := r.Services
	if s == nil {
		return ""
	}
	text := fmt.Sprintf("%s announced, of %s", count(s.Prefixes, "prefix", "prefixes"), strings.Join(s.Ranges, ", "))
	switch {
	case s.Excluded:
		text += "; this node is excluded by its label"
	case !s.Known:
		text += "; single addresses are not known yet"
	}
	return text
}

// reflectionText returns "" if this node has no part in route reflection.
func (r *Report) reflectionText() string {
	f := r.Reflection
	if f == nil {
		return ""
	}
	text := f.Role
	if f.ClusterID != "" {
		text += ", cluster ID " + f.ClusterID
	}
	if len(f.Reflectors) > 0 {
		text += "; reflectors: " + strings.Join(f.Reflectors, ", ")
	}
	return text
}

// pathsText returns "" if there are no paths to other nodes.
func (r *Report) pathsText(p *Paths) string {
	if p == nil || p.Up+p.Down+p.Unknown+p.Unprobed == 0 {
		return ""
	}
	var parts []string
	for _, m := range p.Missed {
		parts = append(parts, fmt.Sprintf("pods do not reach %s (%s) for %s", m.Node, m.Kind, r.ago(m.Since)))
	}
	if more := p.Down - len(p.Missed); more > 0 {
		parts = append(parts, fmt.Sprintf("nor %d more", more))
	}
	if p.Up > 0 {
		parts = append(parts, "pods reach "+count(p.Up, "node"))
	}
	if p.Unknown > 0 {
		parts = append(parts, count(p.Unknown, "node")+" not known yet")
	}
	if p.Unprobed > 0 {
		parts = append(parts, fmt.Sprintf("%s cannot be probed: %s", count(p.Unprobed, "node"), p.UnprobedReason))
	}
	return strings.Join(parts, "; ")
}

func (r *Report) announcedTable() [][]string {
	rows := [][]string{{"PREFIX", "WHY", "COMMUNITIES"}}
	for _, a := range r.Announced {
		rows = append(rows, []string{a.Prefix, a.Origin, dash(a.Communities)})
	}
	return rows
}

func (r *Report) factsText() string {
	f := r.Facts
	if f == nil {
		return "none yet: the plugins ask the API server"
	}
	text := fmt.Sprintf("%s old", r.ago(f.Written))
	if !f.Usable {
		text += ", too old: the plugins ask the API server"
	}
	text = fmt.Sprintf("%s; %s, %s, %s, %s", text, count(f.Pools, "pool"), count(f.Reservations, "reservation"),
		count(f.Affinities, "own block"), count(f.Namespaces, "namespace"))
	if !f.DatastoreReady {
		text += "; the datastore is locked: no pod gets an address (ClusterInformation default, spec.datastoreReady)"
	}
	return text
}

func (r *Report) journalText() string {
	if r.Journal.Entries == 0 {
		return "empty"
	}
	text := count(r.Journal.Entries, "container") + " with addresses to release"
	if r.Journal.LastError != "" {
		text += ": " + strings.ReplaceAll(r.Journal.LastError, "\n", "; ")
	}
	return text
}

func (r *Report) passText() string {
	text := fmt.Sprintf("%s ago, took %s", r.ago(r.LastPass),
		time.Duration(r.LastPassSeconds*float64(time.Second)).Round(100*time.Microsecond))
	switch {
	case r.LastError != "":
		return text + ", failed:\n" + r.LastError
	case !r.Ready:
		return "none yet"
	}
	return text + ", without error"
}

func (r *Report) poolTable() [][]string {
	if len(r.Pools) == 0 {
		return nil
	}
	rows := [][]string{{"NAME", "RANGE", "BLOCKS", "IPIP", "VXLAN", "NAT OUTGOING", "THIS NODE"}}
	for _, p := range r.Pools {
		rows = append(rows,
			[]string{p.Name, p.CIDR, fmt.Sprintf("/%d", p.BlockSize), p.IPIPMode, cmp.Or(p.VXLANMode, "Never"), yes(p.NATOutgoing), p.use()})
	}
	return rows
}

// poolStates describes the reasons of pools' conditions for people.
var poolStates = map[string]string{api.PoolDisabled: "disabled", api.PoolTerminating: "being deleted", api.PoolOverlap: "overlaps another"}

// use describes how this node uses a pool.
func (p Pool) use() string {
	text := "assigns"
	switch {
	case p.Disabled:
		text = cmp.Or(poolStates[p.Reason], "disabled")
	case !p.SelectsNode:
		text = "not selected"
	}
	if p.DisableBGPExport {
		text += ", not announced"
	}
	return text
}

func (r *Report) peerTable() [][]string {
	if len(r.Peers) == 0 {
		return nil
	}
	rows := [][]string{{"ADDRESS", "NODE", "AS", "STATE", "SINCE", "IN", "OUT", "REFUSED", "FROM", "SOURCE", "WITH"}}
	for _, p := range r.Peers {
		rows = append(rows, []string{
			p.Address, dash(p.Node), fmt.Sprint(p.ASN), p.stateText(), r.clock(p.Since), fmt.Sprint(p.Received),
			fmt.Sprint(p.Sent), fmt.Sprint(p.Refused),
			p.from(), p.Source, dash(strings.Join(p.traits(), ", ")),
		})
	}
	return rows
}

// from returns this end's address, or the link that the address will be on.
func (p Peer) from() string {
	_, link, _ := strings.Cut(p.Address, "%")
	return dash(cmp.Or(p.From, link))
}

// traits returns the unusual properties of a session.
func (p Peer) traits() []string {
	var all []string
	for _, t := range []struct {
		so   bool
		text string
	}{
		{p.Client, "client"}, {p.Password, "password"}, {p.TCPAO, "TCP-AO"}, {p.Passive, "passive"},
		{p.TTLHops > 0, count(p.TTLHops, "hop") + " at most"}, {p.LocalASN != 0, fmt.Sprintf("local AS %d", p.LocalASN)},
		{p.State == established && !p.EndOfTable, "its table is not whole yet"},
	} {
		if t.so {
			all = append(all, t.text)
		}
	}
	if p.BFD != nil {
		all = append(all, "BFD "+p.BFD.State)
	}
	return all
}

// undetected returns why a peer's BFD is not up; empty if it is up or not configured.
func (r *Report) undetected(p Peer) string {
	b := p.BFD
	if b == nil || b.State == "Up" {
		return ""
	}
	text := fmt.Sprintf("%s: BFD is not up since %s", p.Address, r.clock(b.Since))
	if b.Diag != "" {
		text += ": " + b.Diag
	}
	switch {
	case b.Fault != "":
		text += ": " + b.Fault
	case !b.Heard:
		text += ": no packets come on UDP port 3784: it has no BFD with this node, is more than one hop away, or a firewall drops them"
	case b.RemoteDiag != "":
		text += ": it says: " + b.RemoteDiag
	}
	return text
}

// wrongKeys describes TCP-AO keys with which the peer signs wrongly, or for too long. Anybody who can send from the
// peer's address can cause the first message.
func (p Peer) wrongKeys() (words []string) {
	if p.WrongKeys != "" {
		words = append(words, fmt.Sprintf("%s: TCP segments from its address have the ID of TCP-AO key %s, and another secret or algorithm has "+
			"signed them: compare the line in the Secret of BGPPeer %s with the peer's", p.Address, p.WrongKeys, p.Object))
	}
	if p.OldKeys != "" {
		words = append(words, fmt.Sprintf(
			"%s: uses removed TCP-AO keys %s: give it the new ones within a week of the removal, when the session ends", p.Address, p.OldKeys))
	}
	return words
}

// refusals describes the peer's prefixes that are not accepted.
func (p Peer) refusals() []string {
	var all []string
	for _, r := range p.Refusals {
		text := fmt.Sprintf("%s: %s: %s", p.Address, count(r.Prefixes, "prefix", "prefixes"), r.Reason)
		if r.Example != "" {
			text += ", such as " + r.Example
		}
		all = append(all, text)
	}
	return all
}

// messages describes the session's messages, and the peer's capabilities.
func (p Peer) messages() string {
	text := fmt.Sprintf("%s: %d received, %d sent, in %s", p.Address, p.MessagesReceived, p.MessagesSent, count(int(p.Sessions), "session"))
	if p.Supports != "" {
		text += "; it offers " + p.Supports
	}
	return text
}

// established is a state of RFC 4271.
const established = "Established"

func (p Peer) stateText() string {
	switch {
	case p.Restarting:
		return p.State + ", restarting"
	case !p.HeldUntil.IsZero():
		return p.State + ", held down"
	}
	return p.State
}

// down explains the sessions that are not established.
func (r *Report) down() []string {
	var words []string
	for _, p := range r.Peers {
		if p.State != established {
			words = append(words, r.words(p))
		}
	}
	return words
}

// words describes the last failure of a session, and when it is tried again; empty if it is up and never failed.
func (r *Report) words(p Peer) string {
	text := r.cause(p)
	switch {
	case p.State == established || p.NextTry.IsZero() || !p.HeldUntil.IsZero():
		return text
	case p.Passive:
		return text + "; let in from " + r.clock(p.NextTry) + " on"
	}
	return text + "; next attempt at " + r.clock(p.NextTry)
}

// cause describes what is or was wrong with a session; empty if it is up and never failed.
func (r *Report) cause(p Peer) string {
	switch {
	case p.State == established && p.LastError == "":
		return ""
	case !p.HeldUntil.IsZero():
		return fmt.Sprintf("%s: kept closed until %s: %s", p.Address, r.clock(p.HeldUntil), p.LastError)
	case p.State == established:
		return fmt.Sprintf("%s: up; before, at %s: %s", p.Address, r.clock(p.ErrorAt), p.LastError)
	case p.LastError == "" && p.Passive && (p.Kind == "node" || p.Kind == "global"):
		return fmt.Sprintf("%s: waiting since %s for it to connect, as this end is the passive one", p.Address, r.clock(p.Since))
	case p.LastError == "" && p.Passive:
		return fmt.Sprintf("%s: waiting since %s for it to connect, as its address is the greater one", p.Address, r.clock(p.Since))
	case p.LastError == "":
		return fmt.Sprintf("%s: connecting since %s", p.Address, r.clock(p.Since))
	case !p.ErrorSince.Before(p.ErrorAt):
		return fmt.Sprintf("%s: at %s: %s", p.Address, r.clock(p.ErrorAt), p.LastError)
	}
	// "TCP refused on port 179: no BGP speaker listens there": the cause, then the remedy.
	cause, remedy, ok := strings.Cut(p.LastError, ": ")
	text := fmt.Sprintf("%s: %s since %s", p.Address, cause, r.clock(p.ErrorSince))
	if ok {
		text += ": " + remedy
	}
	return text
}

func (r *Routes) count() string {
	text := fmt.Sprintf("%d desired, %d programmed, %d held, %d refused", r.Desired, r.Programmed, r.Held, r.Refused)
	if r.Starting {
		text += "; starting: nothing is removed until BGP has told everything"
	}
	return text
}

func (r Route) origin() string {
	text := r.Source
	switch {
	case len(r.Peers) > 1:
		text += " " + strings.Join(r.Peers, ", ")
	case r.Peer != "":
		text += " " + r.Peer
	}
	if r.ASPath != "" {
		text += ", AS path " + r.ASPath
	}
	if r.Communities != "" {
		text += ", communities " + r.Communities
	}
	return text
}

// device returns the output interface, with the encapsulation if there is one.
func (r Route) device() string {
	if r.Encap == "" {
		return dash(r.Device)
	}
	return r.Device + " (" + r.Encap + ")"
}

func refusalTexts(refusals []Refusal) []string {
	texts := make([]string, len(refusals))
	for i, r := range refusals {
		texts[i] = fmt.Sprintf("%s via %s: %s", r.Prefix, r.Via, r.Reason)
		if r.Peer != "" {
			texts[i] = "from " + r.Peer + ": " + texts[i]
		}
	}
	return texts
}

// ago formats the time from t to the report.
func (r *Report) ago(t time.Time) string {
	d := r.Time.Sub(t)
	switch {
	case t.IsZero():
		return "an unknown time"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// clock formats a time of day in the agent's zone, with the date if it is another day.
func (r *Report) clock(t time.Time) string {
	t = t.In(r.Time.Location())
	switch {
	case t.IsZero():
		return "-"
	case t.Format(time.DateOnly) == r.Time.Format(time.DateOnly):
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// count formats a number with its noun. The plural adds an s unless another one is given.
func count(n int, what string, plural ...string) string {
	switch {
	case n == 1:
		return "1 " + what
	case len(plural) > 0:
		return fmt.Sprintf("%d %s", n, plural[0])
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// number formats a number; 0 is a dash.
func number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(text string) string { return cmp.Or(text, "-") }

func orUnknown(n int) string {
	if n == 0 {
		return "not known yet"
	}
	return fmt.Sprint(n)
}

// page collects text, so that there is one write that can fail.
type page struct{ text strings.Builder }

func (p *page) line(text string) { p.text.WriteString(text + "\n") }

// table aligns rows.
func (p *page) table(rows [][]string) {
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a strings.Builder takes everything
	p.text.WriteString(aligned.String())
}

// section adds a table with a title after an empty line; nothing if the table has only its head.
func (p *page) section(title string, rows [][]string) {
	if len(rows) < 2 {
		return
	}
	p.begin(title)
	p.table(rows)
}

// cutRows cuts a table to maxRows rows.
func cutRows(rows [][]string) [][]string {
	more := len(rows) - 1 - maxRows
	if more <= 0 {
		return rows
	}
	return append(rows[:1+maxRows:1+maxRows], []string{fmt.Sprintf("and %d more: -o json has them", more)})
}

func (p *page) begin(title string) {
	p.line("")
	if title != "" {
		p.line(title + ":")
	}
}

// all adds texts below a title; nothing if there are none.
func (p *page) all(title string, texts []string) {
	if len(texts) == 0 {
		return
	}
	p.begin(title)
	for _, text := range texts {
		p.line(text)
	}
}

// lines is all, cut to maxListed texts.
func (p *page) lines(title string, texts []string) {
	if more := len(texts) - maxListed; more > 0 {
		texts = append(texts[:maxListed:maxListed], fmt.Sprintf("and %d more: -o json has them", more))
	}
	p.all(title, texts)
}

func (p *page) writeTo(w io.Writer) error {
	_, err := io.WriteString(w, p.text.String())
	return err
}
