package plugin_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"testing"

	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// Each verb reports a token that the API server does not accept to the installer, also a DEL, which succeeds. It does
// not report missing rights: another token has no others.
func TestARefusedTokenIsToldToTheInstaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	told := func() bool {
		err := w.host.Try(func() error { return os.Remove(facts.TokenRefusedFile) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return err == nil
	}
	s.add(t).ok(t)
	if told() {
		t.Error("told though the token was accepted")
	}
	w.proxy.setRule(refuse(patchPod, http.StatusForbidden))
	s.del(t).ok(t)
	if told() {
		t.Error("told though only a right is missing")
	}
	w.proxy.setRule(nil)
	w.host.Write(t, kubeconfigPath, kubeconfig(w.proxy, wrongToken))
	s.del(t).ok(t)
	if !told() {
		t.Error("a DEL with a token that is refused told nobody")
	}
	w.newPod(t, "other").add(t)
	if !told() {
		t.Error("an ADD with a token that is refused told nobody")
	}
}
