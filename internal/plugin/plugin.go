package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// calico is the name under which the main plugin logs and identifies itself.
const calico = "calico"

// Versions returns the versions of the CNI specification that both plugins support: Calico's, and 1.1.0, which has GC
// and STATUS.
func Versions() version.PluginInfo {
	return version.PluginSupports("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// Funcs returns the verbs of calico.
func Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{
		Add: verb(calico, "ADD", add), Del: verb(calico, "DEL", del), Check: verb(calico, "CHECK", check),
		GC: verb(calico, "GC", gc), Status: verb(calico, "STATUS", status),
	}
}

// verbTime bounds a whole verb: the kubelet gives up after two minutes.
const verbTime = 110 * time.Second

// parallel is how many processors a verb uses. It mostly waits: on a node with 64 processors, threads that came and
// went to look for work were a tenth of its processor time.
const parallel = 2

// call is one execution of a verb with its input.
type call struct {
	*skel.CmdArgs
	plugin string
	conf   netConf
	log    *slog.Logger
}

// verb returns the function that skel calls for do.
func verb(plugin, name string, do func(context.Context, *call) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		if runtime.GOMAXPROCS(0) > parallel {
			runtime.GOMAXPROCS(parallel)
		}
		conf, err := parseConf(plugin, args.StdinData)
		if err != nil {
			return err
		}
		log, done := openLog(&conf, plugin, args)
		defer done()
		return (&call{CmdArgs: args, plugin: plugin, conf: conf, log: log}).run(name, do)
	}
}

// run does what all verbs share: a deadline, a log line, an error with a code, and no panic that reaches the user.
func (c *call) run(verb string, do func(context.Context, *call) error) (err error) {
	for _, o := range c.conf.outdated {
		c.log.Warn("a key of the network configuration is deprecated", "key", o.Key, "instead", o.Instead)
	}
	ctx, cancel := context.WithTimeout(context.Background(), verbTime)
	defer cancel()
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("panic", "verb", verb, "panic", p, "stack", string(debug.Stack()))
			err = types.NewError(types.ErrInternal, fmt.Sprintf("%s %s: internal error: %v", c.plugin, verb, p),
				"please report it with the plugin's log")
			return
		}
		tellRefusal(c.log, err)
		err = classify(c.plugin+" "+verb, err)
		if err != nil {
			c.log.Error(verb, "err", err, "took", time.Since(start))
			return
		}
		c.log.Log(ctx, levelOf(verb), verb, "netns", c.Netns, "ifname", c.IfName, "took", time.Since(start))
	}()
	return do(ctx, c)
}

// levelOf keeps a STATUS that went well out of the log: runtimes execute one every 5 s.
func levelOf(verb string) slog.Level {
	if verb == "STATUS" {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
