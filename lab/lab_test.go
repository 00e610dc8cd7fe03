package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/lab/internal/cluster"
	"github.com/tortie-net/tortie/lab/internal/netns"
)

// launchVariable makes this test binary a launcher that starts the named lab and waits to be killed.
const launchVariable = "TORTIE_LAB_TEST_LAUNCH"

func TestMain(m *testing.M) {
	Init()
	if name := os.Getenv(launchVariable); name != "" {
		os.Exit(launch(name))
	}
	os.Exit(m.Run())
}

func launch(name string) int {
	l, err := Start(context.Background(), Config{Name: name, Nodes: []string{"node1"}, Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready", l.Kubeconfig())
	select {}
}

// testContext ends early enough to clean up before the test binary's deadline.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// labNames are unique on the machine, so that remains can be attributed.
func labNames(t *testing.T, n int) []string {
	t.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("t%d%c", os.Getpid(), 'a'+i)
		t.Cleanup(func() {
			if err := Stop(context.Background(), names[i]); err != nil && !errors.Is(err, ErrNotRunning) {
				t.Error(err)
			}
		})
	}
	return names
}

// traces returns everything on the machine with a lab's name: files and directories, cgroups, mounts, network
// namespaces, links, processes.
func traces(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		"/run/tortie-lab/" + name, "/var/lib/tortie-lab/" + name,
		"/sys/fs/cgroup/tortie-" + name, "/sys/fs/cgroup/*/tortie-" + name, "/tmp/*" + name + "*",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "tortie-"+name) || strings.Contains(line, "tortie-lab/"+name) {
			found = append(found, "mount: "+line)
		}
	}
	return append(found, processes(t, name)...)
}

// processes returns the processes that are named after the lab or run in one of its cgroups. A process that exits
// meanwhile has no files, and a zombie has no arguments.
func processes(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if filepath.Base(dir) != strconv.Itoa(os.Getpid()) &&
			(bytes.Contains(args, []byte("tortie-lab/"+name+"/")) || bytes.Contains(groups, []byte("tortie-"+name+"/"))) {
			found = append(found, fmt.Sprintf("process %s: %q", filepath.Base(dir), args))
		}
	}
	return found
}

func wantNoTrace(t *testing.T, name string) {
	t.Helper()
	if left := traces(t, name); len(left) > 0 {
		t.Errorf("lab %s left behind:\n%s", name, strings.Join(left, "\n"))
	}
}

// eventuallyNoTrace is for a lab that another process stops.
func eventuallyNoTrace(t *testing.T, name string) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for tick := time.Tick(50 * time.Millisecond); len(traces(t, name)) > 0 && time.Now().Before(deadline); <-tick {
	}
	wantNoTrace(t, name)
}

// machine returns the state that a lab must not change: the machine's links, routes, nftables, sysctls that a kubelet
// sets, and directories that Kubernetes' components create.
func machine(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, args := range [][]string{{"ip", "-brief", "link"}, {"ip", "route"}, {"ip", "-brief", "address"}, {"nft", "list", "ruleset"}} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		fmt.Fprintf(&b, "%q:\n%s", args, out)
	}
	for _, file := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "net/ipv4/ip_forward", "kernel/hostname"} {
		value, err := os.ReadFile("/proc/sys/" + file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s = %s", file, value)
	}
	for _, dir := range []string{"/usr/libexec/kubernetes", "/etc/cni", "/opt/cni", "/var/lib/kubelet", "/var/lib/cni", "/var/lib/calico",
		"/etc/kubernetes", "/var/run/kubernetes"} {
		_, err := os.Stat(dir)
		fmt.Fprintf(&b, "%s exists: %v\n", dir, err == nil)
	}
	return b.String()
}

// otherNamespace does what other programs do on the machine, which makes `ip netns` mount /run/netns over itself.
func otherNamespace(t *testing.T, name string) {
	t.Helper()
	for _, args := range [][]string{{"add", name}, {"exec", name, "true"}, {"delete", name}} {
		if out, err := exec.Command("ip", append([]string{"netns"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip netns %q: %v: %s", args, err, out)
		}
	}
}

// checkShell looks for the cluster and its tools as a program that a shell of the lab starts finds them.
func checkShell(ctx context.Context, t *testing.T, l *Lab) {
	cmd, err := l.Shell(ctx, "sh", "-c", "kubectl get --raw /readyz && helm version --short >/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	out, err := output("sh", nil, cmd, func() error { return netns.Do(l.NetNS(), cmd.Run) })
	if err != nil || out != "ok" {
		t.Errorf("the API server from a shell: %q, %v", out, err)
	}
}

func TestTwoLabsAtOnce(t *testing.T) {
	ctx := testContext(t)
	names := labNames(t, 2)
	before := machine(t)
	labs := make([]*Lab, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			labs[i], errs[i] = Start(ctx,
				Config{Name: name, Nodes: []string{"node1"}, Log: t.Output(), IPv6: i == 1, DNS: i == 1, Containerd: 2 * i})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Run("nodes are up but for the pod network", func(t *testing.T) { checkNode(ctx, t, labs[0]) })
	t.Run("they are two clusters", func(t *testing.T) { checkApart(ctx, t, labs) })
	t.Run("the other one has two families and DNS", func(t *testing.T) { checkOptions(ctx, t, labs[1]) })
	t.Run("and containerd 2", func(t *testing.T) { checkContainerd2(ctx, t, labs[1]) })
	t.Run("a node reads the machine and does not write it", func(t *testing.T) { checkRoot(ctx, t, labs[0]) })
	t.Run("a name can be used once", func(t *testing.T) {
		_, err := Start(ctx, Config{Name: names[0], Nodes: []string{"node1"}})
		if err == nil || !strings.Contains(err.Error(), "runs already") {
			t.Errorf("a second lab of the same name: %v", err)
		}
	})
	t.Run("a shell of it", func(t *testing.T) { checkShell(ctx, t, labs[0]) })
	otherNamespace(t, names[0])
	if err := labs[0].Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, names[0])
	if out, err := labs[1].tool(ctx, nil, "kubectl", "get", "--raw", "/readyz"); err != nil || out != "ok" {
		t.Errorf("the other lab after the first was stopped: %q, %v", out, err)
	}
	if err := labs[1].Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, names[1])
	if diff := cmp.Diff(before, machine(t)); diff != "" {
		t.Errorf("the machine itself (-before +after):\n%s", diff)
	}
	if err := labs[1].Stop(ctx); err != nil {
		t.Errorf("stop a second time: %v", err)
	}
}

func checkNode(ctx context.Context, t *testing.T, l *Lab) {
	out, err := l.tool(ctx, nil, "kubectl", "get", "node", "node1", "-o",
		`jsonpath={range .status.conditions[*]}{.type}={.status} {end}{.status.addresses[?(@.type=="InternalIP")].address} `+
			`{.status.conditions[?(@.type=="Ready")].message} {.status.capacity}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ephemeral-storage":"`, "MemoryPressure=False", "DiskPressure=False", "PIDPressure=False", "Ready=False",
		"172.30.0.11", "cni plugin not initialized"} {
		if !strings.Contains(out, want) {
			t.Errorf("node1 lacks %q: %s", want, out)
		}
	}
	images, err := l.Exec(ctx, "node1", "ctr", "-n", "k8s.io", "images", "ls", "-q")
	if err != nil || !strings.Contains(images, DebugImage) {
		t.Errorf("images of node1 lack %s: %q, %v", DebugImage, images, err)
	}
	if conf, err := l.Exec(ctx, "node1", "ls", "-A", "/etc/cni/net.d", "/opt/cni/bin"); err != nil ||
		conf != "/etc/cni/net.d:\n\n/opt/cni/bin:\n" {
		t.Errorf("a new node has CNI files: %q, %v", conf, err)
	}
}

// checkOptions checks the state before a pod network is installed. internal/tests/cluster tests with pods.
func checkOptions(ctx context.Context, t *testing.T, l *Lab) {
	addresses := kubectl(ctx, t, l, "get", "node", "node1", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	if want := "172.30.0.11 fd00:172:30::11"; addresses != want {
		t.Errorf("node1 has the addresses %s, want %s", addresses, want)
	}
	service := kubectl(ctx, t, l, "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIPs}")
	if !strings.HasPrefix(service, `["10.96.0.10","fd00:10:96::`) {
		t.Errorf("kube-dns has the addresses %s", service)
	}
	if out := kubectl(ctx, t, l, "-n", "kube-system", "get", "deployment", "coredns", "-o", "jsonpath={.spec.replicas}"); out != "2" {
		t.Errorf("%s replicas of CoreDNS", out)
	}
	if images, err := l.Exec(ctx, "node1", "ctr", "-n", "k8s.io", "images", "ls", "-q"); err != nil ||
		!strings.Contains(images, cluster.CoreDNSImage) {
		t.Errorf("images of node1 lack %s: %q, %v", cluster.CoreDNSImage, images, err)
	}
}

// checkContainerd2 checks that the node's kubelet uses containerd 2 instead of the machine's, and that a container runs
// by its shim.
func checkContainerd2(ctx context.Context, t *testing.T, l *Lab) {
	runtime := kubectl(ctx, t, l, "get", "node", "node1", "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}")
	if !strings.HasPrefix(runtime, "containerd://2.") {
		t.Errorf("the node's runtime is %q", runtime)
	}
	out, err := l.Exec(ctx, "node1", "ctr", "--namespace", "k8s.io", "run", "--rm", DebugImage, "hello", "echo", "it runs")
	if err != nil || out != "it runs\n" {
		t.Errorf("output of a container: %q, %v", out, err)
	}
}

func checkApart(ctx context.Context, t *testing.T, labs []*Lab) {
	uids := map[string]bool{}
	for _, l := range labs {
		uid, err := l.tool(ctx, nil, "kubectl", "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
		if err != nil {
			t.Fatal(err)
		}
		uids[uid] = true
		if hostname, err := l.Exec(ctx, "node1", "hostname"); err != nil || hostname != "node1\n" {
			t.Errorf("hostname %q, %v", hostname, err)
		}
		if text, err := Describe(ctx, l.state.Name); err != nil || !strings.Contains(text, "node1") || !strings.Contains(text, "running") {
			t.Errorf("status: %q, %v", text, err)
		}
	}
	if len(uids) != len(labs) {
		t.Errorf("%d labs have %d different kube-system namespaces", len(labs), len(uids))
	}
}

func checkRoot(ctx context.Context, t *testing.T, l *Lab) {
	for _, path := range []string{"/usr/tortie-lab-test", "/lab/bin/kubelet"} {
		if _, err := l.Exec(ctx, "node1", "touch", path); err == nil {
			t.Errorf("a node can write %s", path)
		}
	}
	if _, err := l.Exec(ctx, "node1", "sh", "-c",
		"echo 7 > /proc/sys/kernel/panic && touch /etc/tortie-lab-test /var/lib/tortie-lab-test"); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/etc/tortie-lab-test", "/var/lib/tortie-lab-test"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("a node's %s is on the machine", path)
		}
	}
	if _, err := l.Exec(ctx, "nobody", "true"); err == nil {
		t.Error("a program ran on a missing node")
	}
	if _, err := l.Exec(ctx, "node1", "false"); err == nil {
		t.Error("exit code 1 of a program on a node was no error")
	}
}

func TestRestart(t *testing.T) {
	ctx := testContext(t)
	name := labNames(t, 1)[0]
	l, err := Start(ctx, Config{Name: name, Nodes: []string{"node1"}, Log: t.Output(), Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	pod := `{"spec": {"hostNetwork": true, "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}}`
	kubectl(ctx, t, l, "run", "long", "--image="+DebugImage, "--image-pull-policy=Never", "--overrides="+pod, "--", "sleep", "infinity")
	kubectl(ctx, t, l, "wait", "--for=condition=Ready", "pod/long", "--timeout=5m")
	const restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
	if err := l.RestartContainerd(ctx, "node1"); err != nil {
		t.Fatal(err)
	}
	if out, err := l.Exec(ctx, "node1", "ctr", "-n", "k8s.io", "tasks", "ls"); err != nil || strings.Count(out, "RUNNING") != 2 {
		t.Errorf("a pod's two tasks after containerd was restarted: %q, %v", out, err)
	}
	if out := kubectl(ctx, t, l, "get", "pod", "long", "-o", restarts); out != "0" {
		t.Errorf("containerd's restart restarted a container %s times", out)
	}
	leave := "touch /etc/cni/net.d/x /opt/x /var/lib/x /run/x /etc/x && ip link add x type veth peer name y && cat /etc/machine-id " +
		"/sys/class/net/eth0/address"
	before, err := l.Exec(ctx, "node1", "sh", "-c", leave)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.RestartNode(ctx, "node1"); err != nil {
		t.Fatal(err)
	}
	after, err := l.Exec(ctx, "node1", "sh", "-c",
		"ls -d /etc/cni/net.d/x /opt/x /var/lib/x && cat /etc/machine-id /sys/class/net/eth0/address")
	if want := "/etc/cni/net.d/x\n/opt/x\n/var/lib/x\n" + before; err != nil || after != want {
		t.Errorf("what a reboot keeps: %q, %v, want %q", after, err, want)
	}
	if out, err := l.Exec(ctx, "node1", "sh", "-c", "ls -d /run/x /etc/x /sys/class/net/x"); err == nil || out != "" {
		t.Errorf("a reboot kept %s", out)
	}
	kubectl(ctx, t, l, "wait", "--for="+restarts+"=1", "pod/long", "--timeout=5m")
	kubectl(ctx, t, l, "wait", "--for=condition=Ready", "pod/long", "--timeout=5m")
	events := kubectl(ctx, t, l, "get", "events", "--field-selector=reason=Rebooted", "-o", "name")
	if events == "" {
		t.Error("the kubelet has not seen that its node was rebooted")
	}
	if err := l.RestartNode(ctx, "nobody"); err == nil || !strings.Contains(err.Error(), `no node "nobody"`) {
		t.Errorf("restart of a missing node: %v", err)
	}
	if err := l.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, name)
}

func kubectl(ctx context.Context, t *testing.T, l *Lab, args ...string) string {
	t.Helper()
	out, err := l.tool(ctx, nil, "kubectl", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLauncherKilled(t *testing.T) {
	name := labNames(t, 1)[0]
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), launchVariable+"="+name)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ready ") {
		t.Fatalf("the launcher printed %q, %v", line, err)
	}
	if len(traces(t, name)) == 0 {
		t.Fatal("a running lab has no trace: this test would not find the remains of a killed one")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventuallyNoTrace(t, name)
}

func TestSupervisorKilled(t *testing.T) {
	ctx := testContext(t)
	name := labNames(t, 1)[0]
	l, err := Start(ctx, Config{Name: name, Nodes: []string{"node1"}, Log: t.Output(), Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(l.state.Supervisor)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = p.Wait() // it may no longer be a child of this process
	if text, err := Describe(ctx, name); err != nil || !strings.Contains(text, "was killed") {
		t.Errorf("status of a lab without supervisor: %q, %v", text, err)
	}
	if err := Stop(ctx, name); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, name)
	if err := Stop(ctx, name); !errors.Is(err, ErrNotRunning) {
		t.Errorf("stop a lab that is not there: %v, want %v", err, ErrNotRunning)
	}
}

func TestStartFails(t *testing.T) {
	ctx := testContext(t)
	name := labNames(t, 1)[0]
	bad := filepath.Join(t.TempDir(), "bad.tar")
	if err := os.WriteFile(bad, []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Start(ctx, Config{Name: name, Nodes: []string{"node1"}, Images: []string{bad}})
	if err == nil || !strings.Contains(err.Error(), "import image archive 2") {
		t.Errorf("a broken image archive: %v", err)
	}
	wantNoTrace(t, name)
	cancelled, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := Start(cancelled, Config{Name: name, Nodes: []string{"node1"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a start that is cancelled: %v", err)
	}
	wantNoTrace(t, name)
}

func TestConfigMistakes(t *testing.T) {
	for what, c := range map[string]struct {
		config Config
		want   string
	}{
		"a dash in the name":   {Config{Name: "a-b"}, "lab name"},
		"no name":              {Config{}, "lab name"},
		"the same node twice":  {Config{Name: "x", Nodes: []string{"a", "a"}}, "taken"},
		"the underlay's name":  {Config{Name: "x", Nodes: []string{cluster.ControlPlaneName}}, "taken"},
		"a long node name":     {Config{Name: "x", Nodes: []string{"a234567890123456"}}, "node name"},
		"a pod CIDR of a host": {Config{Name: "x", PodCIDR: netip.MustParsePrefix("10.1.0.1/16")}, "pod CIDR 10.1.0.1/16"},
		"a pod CIDR of IPv6":   {Config{Name: "x", PodCIDR: netip.MustParsePrefix("fd00:1::/48")}, "pod CIDR fd00:1::/48"},
		"IPv4 for IPv6":        {Config{Name: "x", IPv6: true, PodCIDR6: netip.MustParsePrefix("10.1.0.0/16")}, "pod CIDR 10.1.0.0/16"},
		"no such image":        {Config{Name: "x", Images: []string{"/nowhere.tar"}}, "/nowhere.tar"},
		"more nodes than /24":  {Config{Name: "x", Nodes: DefaultNodes(300)}, "a lab has 1 to"},
		"a name like a path":   {Config{Name: "../x"}, "lab name"},
		"a name of upper case": {Config{Name: "Lab"}, "lab name"},
	} {
		if _, err := Start(t.Context(), c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", what, err, c.want)
		}
	}
}

func TestUnknownContainerd(t *testing.T) {
	_, err := Config{Name: "x", Nodes: []string{"node1"}, Containerd: 3}.shape()
	if err == nil || !strings.Contains(err.Error(), "containerd 3") {
		t.Errorf("got %v", err)
	}
}
