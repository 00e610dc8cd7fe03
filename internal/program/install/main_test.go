package install

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// aPlugin is a script that answers like a plugin.
const aPlugin = "#!/bin/sh\necho '{\"supportedVersions\":[\"1.0.0\"]}'\n"

// build compiles this program as the image has it: a name of the one binary.
func build(t *testing.T) string {
	t.Helper()
	needtest.More(t, "the product's program, built")
	binary := filepath.Join(t.TempDir(), "install")
	cmd := exec.Command("go", "build", "-o", binary, "github.com/tortie-net/tortie/cmd/tortie")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// pod makes the directories of an installer's pod and returns its environment.
func pod(t *testing.T, api *rest.Config) map[string]string {
	t.Helper()
	root := t.TempDir()
	server, err := url.Parse(api.Host)
	errtest.Must(t, err)
	for _, dir := range []string{"net.d", "bin", "image", "account", "lib", "run"} {
		errtest.Must(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	ca := api.CAData
	if len(ca) == 0 {
		if ca, err = os.ReadFile(api.CAFile); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"image/calico": aPlugin, "image/calico-ipam": aPlugin, "account/ca.crt": string(ca),
		"account/namespace": "kube-system", "account/token": "not a valid token",
	}
	for name, text := range files {
		errtest.Must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	return map[string]string{
		"HOST_CNI_NET_DIR": root + "/net.d", "HOST_CNI_BIN_DIR": root + "/bin", "CNI_BIN_SOURCE_DIR": root + "/image",
		"TORTIE_INSTALL_STATE_DIR": root + "/lib", "TORTIE_INSTALL_RUN_DIR": root + "/run",
		"SERVICE_ACCOUNT_DIR": root + "/account", "KUBERNETES_NODE_NAME": "node1",
		"KUBERNETES_SERVICE_HOST": server.Hostname(), "KUBERNETES_SERVICE_PORT": server.Port(),
	}
}

func command(binary string, env map[string]string, args ...string) (*exec.Cmd, *logtest.Buffer) {
	cmd := exec.Command(binary, args...)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, name+"="+env[name])
	}
	var stderr logtest.Buffer
	cmd.Stderr = &stderr
	return cmd, &stderr
}

func TestBinary(t *testing.T) {
	binary := build(t)
	api := labtest.RESTConfig(t)
	t.Run("version without any environment", func(t *testing.T) {
		cmd, stderr := command(binary, nil, "-v")
		if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "Tortie install ") {
			t.Errorf("said %q, %v\n%s", out, err, stderr)
		}
	})
	t.Run("bad environment", func(t *testing.T) {
		env := pod(t, api)
		env["CNI_MTU"] = "huge"
		cmd, stderr := command(binary, env, "-once")
		fails(t, cmd, stderr, `install: environment variable CNI_MTU="huge": must be a number from 0 to 65535`)
	})
	t.Run("unknown argument", func(t *testing.T) {
		cmd, stderr := command(binary, pod(t, api), "once")
		fails(t, cmd, stderr, `install: unexpected argument "once": the commands are uninstall and rollback, settings come from the environment`)
	})
	t.Run("nobody listens", func(t *testing.T) {
		env := pod(t, api)
		env["KUBERNETES_SERVICE_PORT"] = "1"
		cmd, stderr := command(binary, env)
		errtest.Must(t, cmd.Start())
		// It retries for longer than a test should wait; a signal ends it early, which is a failure.
		waittest.Until(t, 20*time.Second, "it does not say why it waits", func() bool {
			return strings.Contains(stderr.String(), "connection refused")
		})
		errtest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
		if exit := exitCode(t, cmd.Wait()); exit != 1 || !strings.Contains(stderr.String(), "connection refused") {
			t.Errorf("exit code %d:\n%s", exit, stderr)
		}
		if _, err := os.Stat(env["HOST_CNI_NET_DIR"] + "/10-calico.conflist"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("there is a conflist without a token (%v)", err)
		}
	})
	t.Run("refused token", func(t *testing.T) {
		// The API server does not know the pod's token. That may be transient (a restarted API server), so it retries.
		cmd, stderr := command(binary, pod(t, api))
		errtest.Must(t, cmd.Start())
		waittest.Until(t, 20*time.Second, "it does not say why it waits", func() bool {
			return strings.Contains(stderr.String(), "Unauthorized")
		})
		errtest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
		if exit := exitCode(t, cmd.Wait()); exit != 1 || !strings.Contains(stderr.String(), "Unauthorized") {
			t.Errorf("exit code %d:\n%s", exit, stderr)
		}
	})
	t.Run("sidecar", func(t *testing.T) {
		env := pod(t, api)
		errtest.Must(t, os.WriteFile(env["SERVICE_ACCOUNT_DIR"]+"/token", []byte(api.BearerToken), 0o600))
		createNode(t, api, "node1")
		env["TORTIE_INSTALL_METRICS"] = "127.0.0.1:" + freePort(t)
		cmd, stderr := command(binary, env)
		errtest.Must(t, cmd.Start())
		conflist := env["HOST_CNI_NET_DIR"] + "/10-calico.conflist"
		waittest.For(t, 20*time.Second, func() error { _, err := os.Stat(conflist); return err })
		if got := scrape(t, env["TORTIE_INSTALL_METRICS"]); !strings.Contains(got, `tortie_install_token_renewals_total{result="ok"} 1`) {
			t.Errorf("metrics: %s\n%s", got, stderr)
		}
		errtest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v\n%s", err, stderr)
		}
		if text, err := os.ReadFile(conflist); err != nil || !bytes.Contains(text, []byte(`"nodename": "node1"`)) {
			t.Errorf("conflist %q, %v\n%s", text, err, stderr)
		}
	})
}

// A failure is reported by an Event about the Node, which kubectl describe shows.
func TestAFailureIsAnEvent(t *testing.T) {
	api := labtest.RESTConfig(t)
	env := pod(t, api)
	env["KUBERNETES_NODE_NAME"] = "install-event"
	for path, text := range map[string]string{
		env["SERVICE_ACCOUNT_DIR"] + "/token": api.BearerToken,
		env["CNI_BIN_SOURCE_DIR"] + "/calico": "no program",
	} {
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	cmd, stderr := command(build(t), env)
	if exit := exitCode(t, cmd.Run()); exit != 1 || !strings.Contains(stderr.String(), "exec format error") {
		t.Errorf("exit code %d:\n%s", exit, stderr)
	}
	client, err := kubernetes.NewForConfig(api)
	errtest.Must(t, err)
	found, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=install-event"})
	errtest.Must(t, err)
	if len(found.Items) != 1 || found.Items[0].Reason != "InstallFailed" || !strings.Contains(found.Items[0].Message, "exec format error") {
		t.Errorf("events: %+v\n%s", found.Items, stderr)
	}
}

// The commands that an operator gives, on a host on which the sidecar has installed.
func TestCommands(t *testing.T) {
	binary, api := build(t), labtest.RESTConfig(t)
	env := pod(t, api)
	errtest.Must(t, os.WriteFile(env["SERVICE_ACCOUNT_DIR"]+"/token", []byte(api.BearerToken), 0o600))
	env["KUBERNETES_NODE_NAME"] = "install-commands"
	createNode(t, api, "install-commands")
	conflist := env["HOST_CNI_NET_DIR"] + "/10-calico.conflist"
	const before = `{"name":"before","plugins":[{"type":"calico"}]}`
	errtest.Must(t, os.WriteFile(conflist, []byte(before), 0o600))
	succeeds := func(args ...string) {
		t.Helper()
		cmd, stderr := command(binary, env, args...)
		if err := cmd.Run(); err != nil {
			t.Fatalf("install %v: %v\n%s", args, err, stderr)
		}
	}
	holds := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(conflist); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("conflist is %q, %v; want %s", text, err, want)
		}
	}
	succeeds("-once")
	holds("k8s-pod-network")
	succeeds("rollback")
	holds(before)
	cmd, stderr := command(binary, env, "rollback")
	if exit := exitCode(t, cmd.Run()); exit != 1 || !strings.Contains(stderr.String(), "no network to go back to") {
		t.Errorf("a second rollback: exit code %d\n%s", exit, stderr)
	}
	succeeds("-once")
	succeeds("uninstall")
	holds(before)
	cmd, stderr = command(binary, env, "uninstall", "all")
	fails(t, cmd, stderr, `install: unexpected argument "all": the commands are uninstall and rollback, settings come from the environment`)
}

func fails(t *testing.T, cmd *exec.Cmd, stderr *logtest.Buffer, want string) {
	t.Helper()
	if exit := exitCode(t, cmd.Run()); exit != 1 {
		t.Errorf("exit code %d, want 1", exit)
	}
	if got := strings.TrimSpace(stderr.String()); got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("ended with %v, want an exit code", err)
	}
	return exit.ExitCode()
}

// createNode makes a Node, and grants the plugins' account the chart's rights.
func createNode(t *testing.T, api *rest.Config, name string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(api)
	errtest.Must(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.As(t, "tortie-cni")
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	errtest.Must(t, err)
	return port
}

func scrape(t *testing.T, addr string) string {
	t.Helper()
	answer, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	errtest.Must(t, err)
	return string(text)
}
