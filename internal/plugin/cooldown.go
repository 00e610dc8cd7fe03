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

// cooldownFile holds the cooldown of released addresses in seconds, as last read from the datastore by an ADD on this
// node. A DEL without the agent's facts uses it: another read would be one request in seven.
var cooldownFile = filepath.Join(filepath.Dir(facts.DefaultFile), "cooldown")

// cooldownAge is how long a DEL uses the file. On a node without an agent, and without an ADD in that time, DEL reads
// the datastore.
const cooldownAge = 10 * time.Minute

// keepCooldown notes the cooldown that an ADD has read. If it cannot, later DELs need one more request.
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

// keptCooldown returns the noted cooldown, all that a release needs of ipam.Known; nil if no ADD has noted it lately.
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
