package takeover

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
)

// sockets lists the UNIX sockets of the thread's network namespace: unix(7).
const sockets = "/proc/thread-self/net/unix"

// birdSockets are the names of the control sockets of Calico's two BIRDs.
var birdSockets = []string{"bird.ctl", "bird6.ctl"}

// listeningBIRD returns the control sockets at which a BIRD of this network namespace listens. The kernel lists a
// socket only while its process runs, even if the file remains.
func listeningBIRD() ([]string, error) {
	text, err := os.ReadFile(sockets)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return findBIRD(string(text)), err
}

// findBIRD reads lines of "Num RefCount Protocol Flags Type St Inode Path".
func findBIRD(text string) (found []string) {
	const accepts = "00010000" // SO_ACCEPTCON
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[3] != accepts {
			continue
		}
		for _, name := range birdSockets {
			if path.Base(fields[7]) == name {
				found = append(found, fields[7])
			}
		}
	}
	return found
}
