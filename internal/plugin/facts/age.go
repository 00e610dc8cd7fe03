package facts

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/app/hostfile"
)

// Age returns how long ago the agent last confirmed the facts in a file, usable or not. The error wraps fs.ErrNotExist
// if no agent has written the file since the machine started.
func Age(path string, now time.Time) (time.Duration, error) {
	data, err := hostfile.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var f struct {
		Written time.Time `json:"written"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return now.Sub(f.Written), nil
}
