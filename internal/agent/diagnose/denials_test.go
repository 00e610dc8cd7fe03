package diagnose

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// asAgent returns a store with the agent's rights.
func asAgent(t *testing.T) *kubernetes.Store {
	t.Helper()
	store, err := openStore(&config.Diagnose{Kubeconfig: labtest.WriteKubeconfig(t, t.TempDir(), labtest.As(t, "tortie-node"))})
	errtest.Must(t, err)
	t.Cleanup(func() { store.Close() })
	return store
}

// TestDenials: denied connections have the names of pods, by the rights of the agent, and DNS has its own finding.
func TestDenials(t *testing.T) {
	core := clientset.NewForConfigOrDie(labtest.RESTConfig(t)).CoreV1()
	_, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "denials"}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	for name, addr := range map[string]string{"client": "10.97.0.1", "web": "10.97.0.2"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{NodeName: "far", Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
		pod, err := core.Pods("denials").Create(t.Context(), pod, metav1.CreateOptions{})
		errtest.Must(t, err)
		pod.Status.PodIP, pod.Status.PodIPs = addr, []corev1.PodIP{{IP: addr}}
		_, err = core.Pods("denials").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		errtest.Must(t, err)
	}
	by := "egress NetworkPolicy denials/client"
	o := &Observations{Agent: &nodestatus.Report{Policy: &nodestatus.Policy{Denials: []nodestatus.Denial{
		{By: by, Source: "10.97.0.1", Destination: "10.97.0.2", Protocol: 6, Port: 8080, Packets: 7},
		{By: by, Source: "10.97.0.1", Destination: "10.96.0.10", Protocol: 17, Port: 53, Packets: 3},
	}}}}
	o.PodNames = podNames(t.Context(), asAgent(t), o.Agent)
	findings := o.denials()
	expect(t, findings, "denials", "DNS of denials/client (10.97.0.1)", Warning,
		"policies deny this pod DNS: denials/client (10.97.0.1) -> 10.96.0.10 port 53/UDP by "+by)
	expect(t, findings, "denials", "", Warning, "")
	expect(t, findings[1:], "denials", "", OK,
		"denials/client (10.97.0.1) -> denials/web (10.97.0.2) port 8080/TCP by "+by+" (7 packets told of)")
	if findings := (&Observations{Agent: &nodestatus.Report{Policy: &nodestatus.Policy{}}}).denials(); len(findings) != 1 ||
		findings[0].Level != OK {
		t.Errorf("without denials: %+v", findings)
	}
}
