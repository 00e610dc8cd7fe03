package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// A webhook that refuses writes of kube-controllers, or does not answer, is named in log and status, and stops no other
// duty. Refused writes are done once it allows them, or need not answer.
func TestWebhooksThatRefuseTheControllers(t *testing.T) {
	t.Parallel()
	w, _ := newWorldV3(t)
	hook := labtest.NewWebhook(t)
	guard := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "guard"}}
	errtest.Must(t, json.Unmarshal(hook.Configuration(t, "g.example.com", "Fail", "projectcalico.org", "ippools", "ippools/status", "tiers"),
		&guard.Webhooks))
	of := w.core.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	guard, err := of.Create(t.Context(), guard, metav1.CreateOptions{})
	errtest.Must(t, err)
	eventually(t, func() error {
		_ = w.store.DryRun().Create(t.Context(), &api.CalicoTier{Meta: api.Meta{Name: "probe"}})
		if hook.Asked("create tiers (dry run)") == 0 {
			return errors.New("the webhook is not asked")
		}
		return nil
	})
	order := 7.0
	w.create(&api.CalicoTier{Meta: api.Meta{Name: "platform"}, Spec: api.CalicoTierSpec{Order: &order}})
	hook.Answer(func(string) labtest.Verdict { return labtest.Verdict{Code: 400, Message: "because"} })

	p := w.start("one", "", "RECONCILER_PERIOD=1s", "TORTIE_POLICY=on")
	w.node("gone")
	w.assign("of-gone", "gone", "gone")
	w.deleteNode("gone")
	says := func(words string) {
		t.Helper()
		eventually(t, func() error {
			s, err := p.status()
			if err != nil || !errtest.Has(s.Error, words+" g.example.com IPPool") || len(s.DeadWebhooks) > 0 {
				return fmt.Errorf("%q, %v, %w", s.Error, s.DeadWebhooks, err)
			}
			return nil
		})
	}
	says("because")
	eventually(t, func() error {
		if log := p.log.String(); !errtest.Has(log, `"cannot keep tiers in order; retrying" tiers g.example.com because`) {
			return errors.New("nothing about tiers")
		}
		return nil
	})
	eventually(t, func() error {
		if v := w.view(); len(heldBy(&v, "k8s-pod-network.of-gone")) > 0 {
			return errors.New("addresses of a node that is gone are not released")
		}
		return nil
	})
	hook.Answer(func(string) labtest.Verdict { return labtest.Verdict{Code: labtest.Silent} })
	says("deadline")
	ignore := admissionv1.Ignore
	guard.Webhooks[0].FailurePolicy = &ignore
	_, err = of.Update(t.Context(), guard, metav1.UpdateOptions{})
	errtest.Must(t, err)
	eventually(t, w.poolIs("v4", "True OK "+ofPools))
	eventually(t, w.tierIs("platform", ofTiers))
	eventually(t, func() error {
		if s, err := p.status(); err != nil || s.Error != "" {
			return fmt.Errorf("%q, %w", s.Error, err)
		}
		return nil
	})
	if n := strings.Count(p.log.String(), "cannot keep tiers in order"); n > 3 {
		t.Errorf("the log says %d times that tiers are not in order", n)
	}
	errtest.Must(t, of.Delete(t.Context(), "guard", metav1.DeleteOptions{}))
}
