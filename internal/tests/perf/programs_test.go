package perf

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

var programs = flag.String("programs", "", "directory of the programs that TestPrograms runs: node, calico, and get of hack/bench")

// Units of what TestPrograms measures.
const (
	process = "process"
	pass    = "pass"
	table   = "table"
)

func ofProcesses(unit string) bool { return unit == process || unit == pass || unit == table }

// TestPrograms runs the plugins and the agent as they are installed, with a real API server and etcd, which take a
// minute to start where instructions are counted. A figure is the processor time of a process with all its threads and
// children, including the kernel's work for them; the least is one GET of the API server by a program of its own. The
// kernel knows the sum to a microsecond. It samples the part in user space at timer ticks, some milliseconds apart,
// which is useless for processes of ten milliseconds.
func TestPrograms(t *testing.T) {
	needtest.More(t, "a virtual machine that counts instructions: make perf")
	if *programs == "" {
		t.Fatal("-programs is empty: it must name a directory with node, calico and get, as make perf makes it")
	}
	t.Setenv(meshtest.ProgramsEnv, *programs)
	w := newWorker(t)
	all := w.measure(t)
	learned := w.learn(t)
	all = append(all, figure{"10,000 routes learned from a peer, and withdrawn", table, learned, learned / all[0].cost})
	show(t, all)
	if *kernel != "" {
		compare(t, all)
	}
}

// worker is a node with an agent, on which plugins are executed.
type worker struct {
	*meshtest.Node
	host   *cnitest.Host
	core   kubernetes.Interface
	getter []byte // of the program get
}

// Where pods are, and on the node the plugins' kubeconfig.
const (
	namespace      = "default"
	kubeconfigPath = "/etc/cni/net.d/calico-kubeconfig"
)

func newWorker(t *testing.T) *worker {
	t.Helper()
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("pool", "10.90.0.0/16", api.EncapNever))
	w := &worker{Node: c.NewNode(t, "worker", 0, 10)}
	w.host = cnitest.NewHostIn(t, w.NS, *programs)
	cfg := labtest.Inside(t, w.NS, labtest.OnNode(t, c.Admin, "tortie-cni", w.Name))
	var err error
	w.core, err = kubernetes.NewForConfig(c.Admin)
	errtest.Must(t, err)
	w.host.Write(t, kubeconfigPath, labtest.PluginKubeconfig(cfg.Host, cfg.CAData, cfg.BearerToken))
	w.host.On(t, func() error {
		return errors.Join(os.MkdirAll("/var/lib", 0o755), os.Symlink(filepath.Join(w.Dir, "run"), "/run/calico"),
			os.Symlink(filepath.Join(w.Dir, "state"), "/var/lib/calico"))
	})
	w.getter, err = json.Marshal(map[string]string{
		"server": cfg.Host, "ca": string(cfg.CAData), "token": cfg.BearerToken, "path": "/api/v1/namespaces/" + namespace + "/pods/pod-0",
	})
	errtest.Must(t, err)
	w.Env = []string{"TORTIE_POLICY=on"}
	meshtest.Start(t, w.Node)
	return w
}

// run executes a program on the node and returns its processor time.
func (w *worker) run(t *testing.T, program string, stdin []byte, env ...string) float64 {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(cnitest.BinDir, program))
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &out
	w.host.On(t, cmd.Start)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s %q: %v: %s", program, env, err, &out)
	}
	return float64(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())
}

// plugin executes the plugin for a pod.
func (w *worker) plugin(t *testing.T, command string, pod []string) float64 {
	t.Helper()
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes", "nodename": w.Name, "mtu": 1440,
		"log_level": "info", "log_file_path": "/var/log/calico/cni/cni.log", "ipam": map[string]string{"type": "calico-ipam"},
		"policy": map[string]string{"type": "k8s"}, "policy_enforced": true, "policy_setup_timeout_seconds": 5,
		"kubernetes": map[string]string{"kubeconfig": kubeconfigPath},
	})
	errtest.Must(t, err)
	return w.run(t, "calico", conf, append(pod, "CNI_COMMAND="+command)...)
}

// measure connects pods one after another, lets the agent rest, and disconnects them. A pod before these, with which
// the node gets its block, is not counted.
func (w *worker) measure(t *testing.T) []figure {
	t.Helper()
	const count = 12
	var get, add, del []float64
	var envs [][]string
	w.plugin(t, "ADD", w.pod(t, 0))
	for i := range count {
		envs = append(envs, w.pod(t, i+1))
		add = append(add, w.plugin(t, "ADD", envs[i]))
		get = append(get, w.run(t, "get", w.getter))
	}
	rest := w.rest(t)
	for _, env := range envs {
		del = append(del, w.plugin(t, "DEL", env))
	}
	least := middle(get)
	return []figure{
		{"one GET", process, least, 1},
		{"ADD by calico with calico-ipam", process, middle(add), middle(add) / least},
		{"DEL by calico with calico-ipam", process, middle(del), middle(del) / least},
		{"the agent at rest with 13 pods", pass, rest, rest / least},
	}
}

// pod creates a pod and its network namespace, and returns the environment of the plugins for it once the agent knows
// the pod, as plugins ask for more without that.
func (w *worker) pod(t *testing.T, i int) []string {
	t.Helper()
	name := fmt.Sprint("pod-", i)
	made, err := w.core.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: w.Name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	meshtest.Eventually(t, func() error {
		f, err := facts.Read(filepath.Join(w.Dir, "run", "tortie", "facts.json"), w.Name, time.Now())
		if err == nil && !f.PlainPod(string(made.UID)) {
			err = fmt.Errorf("the agent has not told plugins of %s", name)
		}
		return err
	})
	path, ns := "/var/run/netns/"+name, netnstest.New(t)
	w.host.Write(t, path, "")
	w.host.On(t, func() error { return unix.Mount(ns.Path(), path, "", unix.MS_BIND, "") })
	return []string{
		"CNI_CONTAINERID=" + name, "CNI_NETNS=" + path, "CNI_IFNAME=eth0", "CNI_PATH=" + cnitest.BinDir,
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			namespace, name, name, made.UID),
	}
}

// fullPass is the interval of the agent's passes while nothing changes.
const fullPass = 30 * time.Second

// rest returns the agent's processor time from one pass to the next while nothing changes: the pass, the plugins'
// facts, sessions, watches.
func (w *worker) rest(t *testing.T) float64 {
	t.Helper()
	const passes = 4
	for range 10 {
		if _, done := w.agent(t, fullPass); done > 1 {
			continue // it still follows what was before
		}
		used, done := w.agent(t, passes*fullPass)
		if done < passes-1 || done > passes+1 {
			t.Fatalf("%d passes in %v, want %d", done, passes*fullPass, passes)
		}
		return used / float64(done)
	}
	t.Fatal("the agent does not come to rest")
	return 0
}

// agent returns the agent's processor time in a span, and its passes.
func (w *worker) agent(t *testing.T, span time.Duration) (used float64, passes int) {
	t.Helper()
	look := func() (count int, nanoseconds float64) {
		text, err := w.Metrics()
		errtest.Must(t, err)
		_, after, _ := strings.Cut(text, "\ntortie_node_pass_seconds_count ")
		line, _, _ := strings.Cut(after, "\n")
		count, err = strconv.Atoi(line)
		errtest.Must(t, err)
		return count, w.spent(t)
	}
	before, start := look()
	time.Sleep(span) //nolint:forbidigo // it is what is measured
	after, end := look()
	return end - start, after - before
}

// spent is the agent's processor time, in nanoseconds.
func (w *worker) spent(t *testing.T) float64 {
	t.Helper()
	const schedClock = 2 // CPUCLOCK_SCHED of linux/posix-timers_types.h
	var ts unix.Timespec
	errtest.Must(t, unix.ClockGettime(int32(^w.Cmd.Process.Pid<<3|schedClock), &ts))
	return float64(ts.Nano())
}

// learn has another node announce 10,000 blocks by BGP and withdraw them, and returns the agent's processor time from
// the first UPDATE until the kernel has all their routes, and from the withdrawal until it has none: sessions, table,
// judgment, routes. The first time is not counted.
func (w *worker) learn(t *testing.T) float64 {
	t.Helper()
	const count, each, times = 10000, 500, 4
	pool := meshtest.NewPool("learned", "10.160.0.0/12", api.EncapNever)
	pool.Spec.Disabled = true
	w.Create(t, pool)
	other := w.NewNode(t, "other", 0, 11)
	address := other.Prefix.String()
	other.Annotate(t, api.AnnotationIPv4Address, &address)
	session, _ := (&bgptest.Host{NS: other.NS, T: t, V4: other.Prefix.Addr()}).Establish(w.Prefix.Addr(), 64512, 0)
	go func() { _, _ = io.Copy(io.Discard, session.Conn) }()
	var announced, withdrawn [][]byte
	for i := 0; i < count; i += each {
		var blocks []netip.Prefix
		for j := i; j < i+each; j++ {
			blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 160 + byte(j>>10), byte(j >> 2), byte(j << 6)}), 26))
		}
		announced = append(announced, bgptest.UpdateMessage(other.Prefix.Addr(), 100, blocks...))
		withdrawn = append(withdrawn, bgptest.Message(bgptest.Update, bgptest.UpdateBody(bgptest.NLRI(blocks...), nil, nil)...))
	}
	has := func(n int) {
		meshtest.Eventually(t, func() error {
			have, err := w.Conn.Routes(netlinkx.RouteFilter{Family: netlinkx.IPv4, Protocol: routes.DefaultProtocol})
			learned := slices.DeleteFunc(have, func(r netlinkx.Route) bool { return r.Via != other.Prefix.Addr() })
			if err == nil && len(learned) != n {
				err = fmt.Errorf("%d routes, want %d", len(learned), n)
			}
			return err
		})
	}
	var took []float64
	for range times {
		before := w.spent(t)
		session.Send(announced...)
		has(count)
		session.Send(withdrawn...)
		has(0)
		took = append(took, w.spent(t)-before)
	}
	return middle(took[1:])
}
