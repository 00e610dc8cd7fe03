// Package plane runs a Kubernetes control plane: etcd and kube-apiserver, and on demand the controller manager and the
// scheduler. It owns the files of one directory and the processes it starts.
package plane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tortie-net/tortie/lab/internal/kubeapi"
	"github.com/tortie-net/tortie/lab/internal/netns"
	"github.com/tortie-net/tortie/lab/internal/pki"
	"github.com/tortie-net/tortie/lab/internal/proc"
)

// ServiceCIDR is the range of cluster IPs; the API server itself has its first address. ServiceCIDR6 is the IPv6 range.
const (
	ServiceCIDR  = "10.96.0.0/16"
	ServiceCIDR6 = "fd00:10:96::/112"
)

// etcdURL is a Unix socket in the working directory, so that no port is used and no other process reaches an etcd
// without authentication. etcd requires the form host:port even for a socket; both are the name of the socket.
const etcdURL = "unix://client:0"

// portAttempts is the number of attempts with another free port after a race for one.
const portAttempts = 5

// Config is the configuration of a control plane.
type Config struct {
	// Dir is the directory of the state: an absolute path of an existing directory. Its files are not removed.
	Dir       string
	Hyperkube string
	// Server is kube-apiserver of another release; empty is Hyperkube's.
	Server  string
	Spawner *proc.Spawner
	// NetNS is the file of the network namespace, empty for the caller's.
	NetNS string
	// Address is the listen address of the API server and, unless it is loopback, its advertised address.
	Address netip.Addr
	// Port is the API server's, 0 for a free one.
	Port uint16
	// Nodes are the nodes for which a token is written, in NAME.kubeconfig.
	Nodes []string
	// IPv6Services makes Services dual-stack.
	IPv6Services bool
	// GCPercent is GOGC of etcd and kube-apiserver; 0 is Go's default.
	GCPercent int
	// Audit is a group of users; the API server writes their requests to audit.log, one JSON object per line. Empty: none.
	Audit string
	// ControllerManager and Scheduler enable these components.
	ControllerManager, Scheduler bool
	// Timeout is the limit of the start.
	Timeout time.Duration
}

// Plane is a running control plane.
type Plane struct {
	cfg   Config
	ca    []byte
	auth  *pki.Authority
	procs proc.Group
	// server is kube-apiserver, one of procs unless it was killed.
	server *proc.Process
	// Client is an administrator's client of the API server.
	Client *kubeapi.Client
}

var errPortTaken = errors.New("port already in use")

// Start starts the control plane and returns when /readyz is ok. On error nothing runs.
func Start(ctx context.Context, cfg Config) (_ *Plane, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("the API server was not ready within %s", cfg.Timeout))
	defer cancel()
	p := &Plane{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if err := errors.Join(p.writeCerts(), p.writeAuditPolicy()); err != nil {
		return nil, fmt.Errorf("prepare the control plane: %w", err)
	}
	if err := p.run("etcd", "--data-dir", "etcd", "--listen-client-url", etcdURL, "--listen-peer-url", "unix://peer:0"); err != nil {
		return nil, err
	}
	if err := p.startServer(ctx); err != nil {
		return nil, err
	}
	if cfg.ControllerManager {
		if err := p.run("kube-controller-manager", p.controllerManagerFlags()...); err != nil {
			return nil, err
		}
	}
	if cfg.Scheduler {
		return p, p.run("kube-scheduler", p.withKubeconfig("scheduler", "--leader-elect=false")...)
	}
	return p, nil
}

// NodeUser returns the name of a node's kubeconfig.
func NodeUser(node string) string { return "node-" + node }

// Kubeconfig returns the path of a user's kubeconfig: admin, proxy, or one of NodeUser.
func (p *Plane) Kubeconfig(user string) string { return filepath.Join(p.cfg.Dir, user+".kubeconfig") }

// Authority signs further certificates.
func (p *Plane) Authority() *pki.Authority { return p.auth }

// Check returns an error when a component has exited, with the tail of its log.
func (p *Plane) Check() error {
	if dead := p.procs.Dead(); dead != nil {
		return dead.Err()
	}
	return nil
}

// Stop kills all components: their state is discarded.
func (p *Plane) Stop(ctx context.Context) error { return p.procs.Kill(ctx) }

func (p *Plane) run(name string, args ...string) error {
	proc, err := p.start(name, args...)
	if err != nil {
		return err
	}
	p.procs.Add(proc)
	return nil
}

func (p *Plane) start(name string, args ...string) (*proc.Process, error) {
	path := p.cfg.Hyperkube
	if name == "kube-apiserver" && p.cfg.Server != "" {
		path = p.cfg.Server
	}
	var env []string
	if p.cfg.GCPercent != 0 {
		env = append(os.Environ(), fmt.Sprintf("GOGC=%d", p.cfg.GCPercent))
	}
	return p.cfg.Spawner.Start(proc.Spec{
		Name: name, Path: path, Args: args, Dir: p.cfg.Dir, Env: env, NetNS: p.cfg.NetNS,
		Log: filepath.Join(p.cfg.Dir, name+".log"),
	})
}

// startServer starts kube-apiserver, on another port after a race for a free one.
func (p *Plane) startServer(ctx context.Context) error {
	free := p.cfg.Port == 0
	for attempt := 1; ; attempt++ {
		if free {
			port, err := freePort(p.cfg.Address)
			if err != nil {
				return err
			}
			p.cfg.Port = port
		}
		err := p.tryServer(ctx)
		if !free || attempt == portAttempts || !errors.Is(err, errPortTaken) {
			return err
		}
	}
}

func (p *Plane) tryServer(ctx context.Context) error {
	if err := p.writeKubeconfigs(); err != nil {
		return err
	}
	var dial netns.DialFunc
	if p.cfg.NetNS != "" {
		dial = netns.Dialer(p.cfg.NetNS)
	}
	client, err := kubeapi.New(p.Kubeconfig("admin"), dial)
	if err != nil {
		return err
	}
	p.Client = client
	return p.awaitServer(ctx)
}

// awaitServer starts kube-apiserver with the existing files, and returns when it is ready.
func (p *Plane) awaitServer(ctx context.Context) error {
	server, err := p.start("kube-apiserver", p.serverFlags()...)
	if err != nil {
		return err
	}
	err = kubeapi.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		select {
		case <-server.Done():
			return kubeapi.Fatal{Err: portError(server)}
		default:
		}
		if err := p.Check(); err != nil {
			return kubeapi.Fatal{Err: err}
		}
		return p.Client.Ready(ctx)
	})
	if err != nil {
		return errors.Join(fmt.Errorf("start kube-apiserver: %w", err), server.Kill(context.WithoutCancel(ctx)))
	}
	p.procs.Add(server)
	p.server = server
	return nil
}

// KillServer ends kube-apiserver by SIGKILL. etcd and its data stay. It is idempotent.
func (p *Plane) KillServer(ctx context.Context) error {
	if p.server == nil {
		return nil
	}
	p.procs.Remove(p.server)
	err := p.server.Kill(ctx)
	p.server = nil
	return err
}

// StartServer restarts a killed kube-apiserver on the same port with the same credentials, and returns when it is
// ready. A running one is left alone.
func (p *Plane) StartServer(ctx context.Context) error {
	if p.server != nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, fmt.Errorf("the API server was not ready again within %s", p.cfg.Timeout))
	defer cancel()
	return p.awaitServer(ctx)
}

func portError(server *proc.Process) error {
	if strings.Contains(server.LogTail(), "address already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, server.Err())
	}
	return server.Err()
}

func freePort(addr netip.Addr) (uint16, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return 0, fmt.Errorf("find a free port on %s: %w", addr, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port(), nil
}

func (p *Plane) serverFlags() []string {
	flags := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=" + p.cfg.Address.String(), "--advertise-address=" + p.cfg.Address.String(),
		fmt.Sprintf("--secure-port=%d", p.cfg.Port),
		"--tls-cert-file=apiserver.crt", "--tls-private-key-file=apiserver.key", "--client-ca-file=ca.crt",
		"--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", // as with kubeadm: a kubelet may change only its own Node and pods
		"--kubelet-client-certificate=kubelet-client.crt", "--kubelet-client-key=kubelet-client.key",
		"--kubelet-certificate-authority=ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=sa.pub",
		"--service-account-signing-key-file=sa.key", "--service-cluster-ip-range=" + p.serviceCIDRs(),
		// Webhooks are called at pod addresses, since no kube-proxy runs in this server's namespace.
		"--enable-aggregator-routing=true",
		"--allow-privileged=true", "--profiling=false",
		// A lab has few requests, and priority and fairness responds to some of the first with 429.
		"--enable-priority-and-fairness=false",
	}
	if p.cfg.Audit != "" {
		flags = append(flags, "--audit-policy-file=audit.yaml", "--audit-log-path=audit.log", "--audit-log-mode=blocking-strict")
	}
	if p.cfg.Address.IsLoopback() {
		// The service "kubernetes" may not have a loopback address as its endpoint.
		flags = append(flags, "--endpoint-reconciler-type=none")
	}
	if !p.cfg.ControllerManager {
		// Without a controller manager no namespace gets its default ServiceAccount, and this plugin would deny every Pod.
		flags = append(flags, "--disable-admission-plugins=ServiceAccount")
	}
	return flags
}

func (p *Plane) serviceCIDRs() string {
	if p.cfg.IPv6Services {
		return ServiceCIDR + "," + ServiceCIDR6
	}
	return ServiceCIDR
}

func (p *Plane) controllerManagerFlags() []string {
	return p.withKubeconfig("controller-manager",
		"--leader-elect=false", "--use-service-account-credentials=true", "--root-ca-file=ca.crt",
		"--service-account-private-key-file=sa.key", "--cluster-signing-cert-file=ca.crt", "--cluster-signing-key-file=ca.key",
		// The default is created at start, below the machine's /usr.
		"--flex-volume-plugin-dir="+filepath.Join(p.cfg.Dir, "flexvolume"))
}

func (p *Plane) withKubeconfig(user string, more ...string) []string {
	path := p.Kubeconfig(user)
	// Port 0 disables the components' own endpoints, which are not used and would collide between labs on loopback. The
	// default rate limits protect busy API servers; here they would be most of a start's time.
	return append([]string{"--kubeconfig=" + path, "--secure-port=0", "--profiling=false", "--kube-api-qps=500", "--kube-api-burst=1000"},
		more...)
}

func (p *Plane) writeCerts() error {
	a, err := pki.NewAuthority(p.cfg.Dir, time.Now())
	if err != nil {
		return err
	}
	p.auth = a
	hosts := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	service := netip.MustParsePrefix(ServiceCIDR).Addr().Next()
	addrs := []netip.Addr{p.cfg.Address, netip.MustParseAddr("127.0.0.1"), service}
	p.ca, err = os.ReadFile(a.CAFile())
	return errors.Join(err,
		a.Server("apiserver", hosts, addrs),
		a.Client("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
		a.KeyPair("sa"))
}

// writeAuditPolicy logs each request of the group once: at its response or, for a watch, at its start.
func (p *Plane) writeAuditPolicy() error {
	if p.cfg.Audit == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(p.cfg.Dir, "audit.yaml"), fmt.Appendf(nil, `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: Metadata, userGroups: [%q]}
  - {level: None}
`, p.cfg.Audit), 0o600)
}

// user is one line of the token file with its kubeconfig.
type user struct{ file, name, groups string }

func (p *Plane) users() []user {
	all := []user{
		{"admin", "admin", "system:masters"},
		{"controller-manager", "system:kube-controller-manager", ""},
		{"scheduler", "system:kube-scheduler", ""},
		{"proxy", "system:kube-proxy", ""},
	}
	for _, n := range p.cfg.Nodes {
		// Tokens instead of TLS bootstrap: the Node authorizer checks only the user's name and group.
		all = append(all, user{NodeUser(n), "system:node:" + n, "system:nodes"})
	}
	return all
}

func (p *Plane) writeKubeconfigs() error {
	var tokens strings.Builder
	server := "https://" + netip.AddrPortFrom(p.cfg.Address, p.cfg.Port).String()
	for _, u := range p.users() {
		token := pki.Token()
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, u.name, u.file, u.groups)
		if err := (pki.Kubeconfig{Server: server, CA: p.ca, Token: token}).Write(p.Kubeconfig(u.file)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(p.cfg.Dir, "tokens.csv"), []byte(tokens.String()), 0o600)
}
