package hook

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tortie-net/tortie/internal/install/objects"
	"github.com/tortie-net/tortie/internal/install/traffic"
)

// testTraffic is the command of `helm test`.
func testTraffic(flags *flag.FlagSet, tell func(string)) func(ctx context.Context) error {
	var s traffic.Settings
	flags.StringVar(&s.Namespace, "namespace", "kube-system", "`namespace` that gets the pods")
	flags.DurationVar(&s.Timeout, "timeout", 2*time.Minute, "how long all of it may take")
	file := flags.String("pod", "/test/pod.yaml", "`file` with the pod that each is made of")
	owner := flags.String("owner", "", "`name/uid` of the pod that the pods go with")
	connect := connection(flags)
	return func(ctx context.Context) (err error) {
		if s.Owner, err = parseOwner(*owner); err != nil {
			return err
		}
		if s.Pod, err = readPod(*file); err != nil {
			return err
		}
		cfg, err := connect()
		if err != nil {
			return err
		}
		cluster, err := objects.New(cfg)
		if err != nil {
			return err
		}
		return traffic.New(cluster, s, tell).Run(ctx)
	}
}

func parseOwner(text string) (*metav1.OwnerReference, error) {
	if text == "" {
		return nil, nil
	}
	name, uid, ok := strings.Cut(text, "/")
	if !ok || name == "" || uid == "" {
		return nil, fmt.Errorf("-owner %q is not of the form name/uid", text)
	}
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID(uid)}, nil
}

// terminationLog is the file with the container's message for the pod's status.
const terminationLog = "/dev/termination-log"

// probe is the command of the test's pods: it needs no rights in the cluster.
func probe(flags *flag.FlagSet, tell func(string)) func(ctx context.Context) error {
	listen := flags.Bool("listen", false, "answer what comes, until the end")
	to := flags.String("to", "", "`addresses`, with commas between them, to send packets to")
	port := flags.Int("port", traffic.Port, "port of the echo")
	result := flags.String("result", terminationLog, "`file` for the results, as JSON")
	return func(ctx context.Context) error {
		if *listen == (*to != "") {
			return errors.New("probe: either -listen or -to, please")
		}
		if *listen {
			return traffic.Serve(ctx, *port)
		}
		var results []traffic.Result
		for text := range strings.SplitSeq(*to, ",") {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return fmt.Errorf("-to: %w", err)
			}
			r := traffic.Measure(ctx, addr, *port)
			tell(r.String())
			results = append(results, r)
		}
		text, err := json.Marshal(results)
		if err != nil {
			return err
		}
		return os.WriteFile(*result, text, 0o600)
	}
}
