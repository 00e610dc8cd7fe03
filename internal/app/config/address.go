package config

import (
	"errors"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/app/nodeaddr"
)

// RawAddress holds the variables for a node's addresses as text. Names and meanings are Calico's; but the default
// method is kubernetes-internal-ip, links are distinguished by kind, and an address on the Node that no link has is
// ignored.
type RawAddress struct {
	IP      string `env:"IP" default:"" help:"IPv4 address of this node, with or without prefix length; autodetect; none, for IPv6 alone; empty keeps the Node's if a link has it, else detects."`
	IP6     string `env:"IP6" default:"" help:"IPv6 address of this node, as IP; but empty uses no IPv6 unless the Node has an address."`
	Method  string `env:"IP_AUTODETECTION_METHOD" default:"kubernetes-internal-ip" help:"kubernetes-internal-ip, first-found, can-reach=HOST, or lists of interface=REGEX, skip-interface=REGEX, cidr=CIDR."`
	Method6 string `env:"IP6_AUTODETECTION_METHOD" default:"kubernetes-internal-ip" help:"The same for IPv6."`
	AS      string `env:"AS" default:"" help:"AS number of this node, written to its Node; empty leaves that."`
}

// Address is how the node's address of one family is found.
type Address struct {
	Setting nodeaddr.Setting
	Method  nodeaddr.Method
}

// Addresses are how the node's addresses are found, and the node's identity towards its BGP peers.
type Addresses struct {
	V4, V6      Address
	Shared      bool   `env:"DISABLE_NODE_IP_CHECK" default:"false" help:"true takes an address that another node has announced."`
	RouterID    string `env:"CALICO_ROUTER_ID" default:"" help:"BGP's router ID: an IPv4 address, or hash, of the node's name; empty: the IPv4 address; needed with IPv6 alone."`
	MaxPrefixes int    `env:"TORTIE_BGP_MAX_PREFIXES" default:"20000" is:"1-10000000" help:"Prefixes that a BGP peer may announce; above, its session is closed for a while."`
	// ASN is written to the Node; 0 leaves the Node's.
	ASN uint32
}

// complete sets the fields that derive from raw.
func (a *Addresses) complete(raw RawAddress, p *problems) {
	a.V4 = p.addressOf(nodeaddr.IPv4, "IP", raw.IP, raw.Method)
	a.V6 = p.addressOf(nodeaddr.IPv6, "IP6", raw.IP6, raw.Method6)
	if err := nodeaddr.ParseRouterID(a.RouterID); err != nil {
		p.add("CALICO_ROUTER_ID", a.RouterID, err.Error())
	}
	if a.V4.Setting.Mode == nodeaddr.None && a.V6.Setting.Mode == nodeaddr.None {
		p.add("IP6", raw.IP6, "must not be none beside IP=none: a node needs an address")
	}
	if raw.AS == "" {
		return
	}
	var err error
	if a.ASN, err = ParseASN(raw.AS); err != nil {
		p.add("AS", raw.AS, err.Error())
	}
}

func (p *problems) addressOf(f nodeaddr.Family, name, setting, method string) (a Address) {
	var err error
	if a.Setting, err = nodeaddr.ParseSetting(setting, f); err != nil {
		p.add(name, setting, err.Error())
	}
	if a.Method, err = nodeaddr.ParseMethod(method, f); err != nil {
		p.add(name+"_AUTODETECTION_METHOD", method, err.Error())
	}
	return a
}

// ParseASN reads an AS number as Calico does: in decimal, or as its two halves with a dot between.
func ParseASN(text string) (uint32, error) {
	high, low, halves := strings.Cut(text, ".")
	bits := 32
	if halves {
		bits = 16
	} else {
		high, low = "0", text
	}
	h, err1 := strconv.ParseUint(high, 10, 16)
	l, err2 := strconv.ParseUint(low, 10, bits)
	if n := uint32(h<<16 | l); err1 == nil && err2 == nil && n != 0 {
		return n, nil
	}
	return 0, errors.New("is no AS number from 1 to 4294967295")
}

// RawAccepted are variables of Calico's manifest that change nothing here, so that a manifest need not be rewritten.
type RawAccepted struct {
	WaitForDatastore string `env:"WAIT_FOR_DATASTORE" default:"" help:"Accepted: the agent always waits."`
	PollInterval     string `env:"AUTODETECT_POLL_INTERVAL" default:"" help:"Accepted: the kernel tells of changes, nothing is polled."`
	HealthEnabled    string `env:"FELIX_HEALTHENABLED" default:"" help:"Accepted: health is always served."`
	IPv6Support      string `env:"FELIX_IPV6SUPPORT" default:"" help:"Accepted: IP6 decides."`
	NoFileLogging    string `env:"CALICO_DISABLE_FILE_LOGGING" default:"" help:"Accepted: the log goes to standard error alone."`
	StartupLogLevel  string `env:"CALICO_STARTUP_LOGLEVEL" default:"" help:"Accepted: LOG_LEVEL counts."`
	ManageCNI        string `env:"CALICO_MANAGE_CNI" default:"" help:"Accepted: the installer manages the plugins."`
	NodeRef          string `env:"CALICO_K8S_NODE_REF" default:"" help:"Accepted: NODENAME is the Node."`
}
