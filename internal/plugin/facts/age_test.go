package facts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestAge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "facts.json")
	now := time.Now()
	if _, err := Age(path, now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("age of no file: %v, want fs.ErrNotExist", err)
	}
	errtest.Must(t, Write(path, Facts{Node: "n", Written: now.Add(-time.Hour)}))
	if age, err := Age(path, now); err != nil || age.Round(time.Second) != time.Hour {
		t.Errorf("age %v, %v; want an hour", age, err)
	}
	errtest.Must(t, os.WriteFile(path, []byte("{"), 0o600))
	if age, err := Age(path, now); err == nil {
		t.Errorf("age of a damaged file: %v", age)
	}
}
