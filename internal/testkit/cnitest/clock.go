package cnitest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// clockEnv is the environment variable with the file that steps the clock of a program built with Stepping.
const clockEnv = "TORTIE_TEST_CLOCK"

// Stepping builds the programs so that a test can step their clock as settimeofday steps a machine's: the wall clock
// jumps, the monotonic clock does not. Only time.Now of the standard library is replaced, in these builds only; the
// sources of the programs are a release's.
func (p *Programs) Stepping() *Programs {
	p.stepping = true
	return p
}

// ClockSetting returns the environment setting with which a program uses the clock in a file that StepClock has
// written.
func ClockSetting(file string) string { return clockEnv + "=" + file }

// StepClock sets the clock of a program ahead of the machine's, or behind it. The file is created if it does not exist.
func StepClock(file string, ahead time.Duration) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	// A single write: a program reads either the old or the new value.
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), 0)
	return errors.Join(err, f.Close())
}

// stepSource is added to package time.
const stepSource = `package time

import (
	"syscall"
	"unsafe"
)

var clockAhead = mapClock()

// mapClock maps the file with the number of seconds that the clock is ahead.
func mapClock() *int64 {
	name, ok := syscall.Getenv("` + clockEnv + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("open the test's clock " + name + ": " + err.Error())
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("map the test's clock " + name + ": " + err.Error())
	}
	syscall.Close(fd)
	return (*int64)(unsafe.Pointer(&page[0]))
}
`

// The first lines of time.Now, and their replacement.
const (
	nowBegins = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	nowSteps  = nowBegins + "\tsec += *clockAhead\n"
)

// overlay writes the files for go build -overlay that replace time.Now into a directory, and returns the overlay file.
func overlay(dir string) (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the standard library: %w", err)
	}
	src := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(src, "time.go"))
	if err != nil {
		return "", err
	}
	if strings.Count(string(text), nowBegins) != 1 {
		return "", fmt.Errorf("time.Now of %s is not the one that this test knows: adapt nowBegins", src)
	}
	return writeOverlay(dir, map[string]string{
		filepath.Join(src, "time.go"): strings.Replace(string(text), nowBegins, nowSteps, 1), filepath.Join(src, "step.go"): stepSource,
	})
}

// writeOverlay writes source files, by the paths that they replace, into a directory, and returns the overlay file for
// go build.
func writeOverlay(dir string, sources map[string]string) (string, error) {
	replaced := map[string]string{}
	for path, content := range sources {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return "", err
		}
		replaced[path] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o644)
}
