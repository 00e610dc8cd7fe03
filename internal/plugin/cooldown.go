package plugin

import (
	"path/filepath"
	"strconv"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// cooldownFile has for how many seconds released addresses cool down, as the datastore told the last ADD on this node
// that had to ask. A DEL that has no facts of the agent goes by it: to ask again would be one request in seven.
var cooldownFile = filepath.Join(filepath.Dir(facts.DefaultFile), "cooldown")

// cooldownAge is for how long a DEL goes by it. A node without an agent that has no ADD in that time asks.
const cooldownAge = 10 * time.Minute

// keepCooldown notes what an ADD was told. That it cannot costs later DELs a request.
func (s *session) keepCooldown(told *ipam.Attempt) {
	cfg, ok := told.Config()
	if !ok || s.known() != nil {
		return
	}
	err := hostfile.MkdirAll(filepath.Dir(cooldownFile), 0o755)
	if err == nil {
		_, err = hostfile.Replace(cooldownFile, []byte(strconv.Itoa(cfg.IPCooldownSeconds)), 0o600)
	}
	if err == nil {
		err = hostfile.Touch(cooldownFile, s.began)
	}
	if err != nil {
		s.log.Debug("cannot cache the address cooldown", "why", err)
	}
}

// keptCooldown is known as far as a release needs it, or nil if no ADD has lately noted it.
func (s *session) keptCooldown() *ipam.Known {
	info, err := hostfile.Lstat(cooldownFile)
	if err != nil || s.began.Sub(info.ModTime()).Abs() > cooldownAge {
		return nil
	}
	text, err := hostfile.ReadFile(cooldownFile)
	if err != nil {
		return nil
	}
	seconds, err := strconv.Atoi(string(text))
	if err != nil || seconds < 0 {
		return nil
	}
	return &ipam.Known{Config: api.IPAMConfigSpec{IPCooldownSeconds: seconds}}
}
