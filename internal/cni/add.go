package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/podnet"
)

// plugin is the name under which the main plugin logs and identifies itself.
const plugin = "calico"

// undoTime bounds the clean-up after a failed ADD, whatever is left of the verb's own time.
const undoTime = 20 * time.Second

// Funcs returns the verbs of calico.
func Funcs() skel.CNIFuncs {
	verb := func(name string, do func(context.Context, *slog.Logger, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			return run(plugin, name, args, func(ctx context.Context, log *slog.Logger) error { return do(ctx, log, args) })
		}
	}
	return skel.CNIFuncs{Add: verb("ADD", add), Del: verb("DEL", del), Check: verb("CHECK", check)}
}

// add gives a pod its address and its link. After a failure nothing is left of it.
func add(ctx context.Context, log *slog.Logger, args *skel.CmdArgs) (err error) {
	r, err := parseRequest(args)
	if err != nil {
		return err
	}
	if err := checkNetns(r.netns); err != nil {
		return err
	}
	if r.mtu, err = podMTU(&r.conf, defaultMTUFile); err != nil {
		return err
	}
	store, err := openStore(&r.conf, plugin)
	if err != nil {
		return err
	}
	pod, ns, err := readPod(ctx, store, r)
	if err != nil {
		return err
	}
	if r.stdin, err = ipamStdin(r, pod, ns); err != nil {
		return err
	}
	assigned, err := delegateAdd(ctx, r)
	if err != nil {
		return err
	}
	wired := false
	defer func() {
		if err != nil {
			err = undo(ctx, r, wired, err)
		}
	}()
	addrs, err := resultAddrs(assigned)
	if err != nil {
		return err
	}
	link, err := podnet.Setup(ctx, r.podConfig(log, addrs))
	if err != nil {
		return fmt.Errorf("wire the pod: %w", err)
	}
	wired = true
	if err := annotate(ctx, store, pod, r.containerID, addrs); err != nil {
		return fmt.Errorf("note the address on the pod: %w", err)
	}
	log.Info("wired", "link", link.HostVeth, "addresses", addrs, "mtu", link.MTU)
	return types.PrintResult(result(r, link, addrs, assigned), r.conf.CNIVersion)
}

// readPod asks, at the same time, whether the datastore may be used, for the pod, and for its namespace.
func readPod(ctx context.Context, store *kubernetes.Store, r *request) (*api.Pod, *api.Namespace, error) {
	pod := &api.Pod{Meta: api.Meta{Name: r.pod, Namespace: r.namespace}}
	ns := &api.Namespace{Meta: api.Meta{Name: r.namespace}}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return checkReady(ctx, store) })
	g.Go(func() error { return getOfPod(ctx, store, pod) })
	g.Go(func() error { return getOfPod(ctx, store, ns) })
	return pod, ns, g.Wait()
}

func getOfPod(ctx context.Context, store *kubernetes.Store, obj api.Resource) error {
	err := store.Get(ctx, obj)
	if errors.Is(err, datastore.ErrNotFound) {
		return failure(types.ErrUnknownContainer,
			fmt.Errorf("read the pod: %w: it was deleted meanwhile, or the plugins' kubeconfig is of another cluster than the kubelet's", err))
	}
	return err
}

// ipamStdin is the configuration for the IPAM plugin: the pools that the pod or, if it names none, its namespace asks for
// replace those of the configuration.
func ipamStdin(r *request, pod *api.Pod, ns *api.Namespace) ([]byte, error) {
	v4, err := annotatedPools(api.AnnotationIPv4Pools, pod, ns)
	if err != nil {
		return nil, err
	}
	v6, err := annotatedPools(api.AnnotationIPv6Pools, pod, ns)
	if err != nil {
		return nil, err
	}
	if v4 == nil && v6 == nil {
		return r.stdin, nil
	}
	return withPools(r.stdin, v4, v6)
}

func annotatedPools(key string, pod *api.Pod, ns *api.Namespace) ([]string, error) {
	text, on := pod.Annotations[key], "pod "+pod.Namespace+"/"+pod.Name
	if text == "" {
		text, on = ns.Annotations[key], "namespace "+ns.Name
	}
	if text == "" {
		return nil, nil
	}
	var pools []string
	if err := json.Unmarshal([]byte(text), &pools); err != nil || len(pools) == 0 {
		return nil, failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf(`annotation %s of %s: %q: must be a JSON list of names or CIDRs of IPPools, such as ["default-ipv4-ippool"]`, key, on, text))
	}
	return pools, nil
}

// undo takes back what a failed ADD has done, and returns why it failed. The link, if one was made, goes first: an address
// must not be free while a pod has it.
func undo(ctx context.Context, r *request, wired bool, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var err error
	if wired {
		err = podnet.Teardown(ctx, r.netns, r.ifName, r.hostVeth())
	}
	if err == nil {
		err = delegateDel(ctx, r)
	}
	if err == nil {
		return cause
	}
	// The code is the cause's, so the other error takes part as text only.
	return fmt.Errorf("%w; what it had done is left for DEL, since undoing it failed: %v", cause, err)
}

func resultAddrs(res *types100.Result) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, ip := range res.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("IPAM plugin: its result has the address %q", ip.Address.String())
		}
		addrs = append(addrs, a.Unmap())
	}
	if len(addrs) == 0 {
		return nil, errors.New("IPAM plugin: its result has no address")
	}
	return addrs, nil
}

func (r *request) hostVeth() string {
	return podnet.HostVethName(podnet.DefaultVethPrefix, r.namespace, r.pod)
}

func (r *request) podConfig(log *slog.Logger, addrs []netip.Addr) podnet.Config {
	return podnet.Config{
		Netns:             r.netns,
		IfName:            r.ifName,
		HostVeth:          r.hostVeth(),
		Addresses:         addrs,
		MTU:               r.mtu,
		Queues:            r.conf.NumQueues,
		AllowIPForwarding: r.conf.ContainerSettings.AllowIPForwarding,
		Log:               log,
	}
}

// annotate tells Felix, garbage collection and people which addresses the pod has, in the form that Calico uses.
func annotate(ctx context.Context, store *kubernetes.Store, pod *api.Pod, containerID string, addrs []netip.Addr) error {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = netip.PrefixFrom(a, a.BitLen()).String()
	}
	all := strings.Join(texts, ",")
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{
		api.AnnotationPodIP:       &texts[0],
		api.AnnotationPodIPs:      &all,
		api.AnnotationContainerID: &containerID,
	}}}
	return store.PatchStatus(ctx, pod, patch, false)
}

// result is what ADD prints. Calico's forms: the host's link by name only, addresses as /32 or /128 of the second
// interface, no gateway, and the IPAM plugin's routes.
func result(r *request, link podnet.Result, addrs []netip.Addr, assigned *types100.Result) *types100.Result {
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: link.HostVeth},
			{Name: r.ifName, Mac: link.MAC.String(), Mtu: link.MTU, Sandbox: r.netns},
		},
		Routes: assigned.Routes,
		DNS:    assigned.DNS,
	}
	for _, a := range addrs {
		res.IPs = append(res.IPs, &types100.IPConfig{
			Interface: types100.Int(1),
			Address:   net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		})
	}
	return res
}
