package ipamtool

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

var auditCommand = command{
	name: "audit", help: "the whole account: every pool, block and address, and what is wrong",
	args: "[-o text|json] [-report FILE] [-again 5s]",
	text: `
The whole account of IPAM, for the record and for comparing two moments: how full the pools and blocks are, each address that is
held and by whom, and what is wrong. Its exit code is that of check.

With -report the account is written into a file as well, as JSON. ipam release -report FILE frees what such a report, or each
of several, shows to be of nobody, and what still is.`,
}

func init() { auditCommand.run = (*tool).audit }

// reportVersion is the version of a Report's format. Other versions are refused.
const reportVersion = 1

// Report is the state of IPAM at one moment.
type Report struct {
	Version int `json:"version"`
	// Cluster is the GUID of ClusterInformation.
	Cluster   string          `json:"cluster"`
	Taken     time.Time       `json:"taken"`
	Pools     []audit.Usage   `json:"pools"`
	Addresses []Held          `json:"addresses"`
	Findings  []audit.Finding `json:"findings"`
}

func (t *tool) audit(ctx context.Context, args []string) (int, error) {
	flags := t.lookFlagsOf(auditCommand)
	file := flags.String("report", "", "write the account into this `file` too, as JSON")
	if err := flags.parse(args); err != nil {
		return exitUsage, err
	}
	found, err := t.look(ctx, flags.again)
	if err != nil {
		return exitError, err
	}
	report := newReport(found)
	if *file != "" {
		if err := report.save(*file); err != nil {
			return exitError, err
		}
	}
	if flags.asJSON {
		return code(found.Findings), writeJSON(t.Out, report)
	}
	for _, rows := range [][][]string{usageRows(report.Pools, true), heldRows(report.Addresses)} {
		if err := table(t.Out, rows); err != nil {
			return exitError, err
		}
		fmt.Fprintln(t.Out)
	}
	return code(found.Findings), found.write(t, false)
}

func newReport(found *looks) *Report {
	r := &Report{
		Version: reportVersion, Cluster: guid(found.last), Taken: found.last.Taken.UTC(), Pools: audit.Usages(found.last),
		Addresses: allHeld(found.last), Findings: found.Findings,
	}
	if r.Findings == nil {
		r.Findings = []audit.Finding{}
	}
	return r
}

func guid(v *inventory.View) string {
	if v.Information == nil {
		return ""
	}
	return v.Information.Spec.ClusterGUID
}

func (r *Report) save(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// loadReport reads a report of this cluster.
func loadReport(path string, v *inventory.View) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("report %s: %w: it must be one that ipam audit has written", path, err)
	}
	switch {
	case r.Version != reportVersion:
		return nil, fmt.Errorf("report %s has version %d: this program writes and reads version %d: make a new one", path,
			r.Version, reportVersion)
	case r.Cluster != guid(v):
		return nil, fmt.Errorf("report %s is of cluster %q, and this is %q", path, r.Cluster, guid(v))
	}
	return &r, nil
}
