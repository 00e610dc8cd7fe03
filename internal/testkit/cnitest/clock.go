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

// clockEnv names the file that steps the clock of a program that was built with Stepping.
const clockEnv = "TORTIE_TEST_CLOCK"

// Stepping has the programs built so that a test can step the clock that they see, as settimeofday steps a machine's: what the wall
// clock shows jumps, and what measures durations does not. It is the standard library's time.Now that is replaced, in these builds
// only; the sources of the programs are those of a release.
func (p *Programs) Stepping() *Programs {
	p.stepping = true
	return p
}

// ClockSetting is what a program's environment must have to see the clock in a file, which NewClock has written.
func ClockSetting(file string) string { return clockEnv + "=" + file }

// StepClock makes a clock that a program sees go ahead of the machine's, or behind it, by so much. The file is created if there is none.
func StepClock(file string, ahead time.Duration) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	// In one write: a program sees the one value or the other.
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), 0)
	return errors.Join(err, f.Close())
}

// stepSource is what package time gets in addition.
const stepSource = `package time

import (
	"syscall"
	"unsafe"
)

var clockAhead = mapClock()

// mapClock maps the file that says by how many seconds the clock is ahead.
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

// The beginning of time.Now, and what it becomes.
const (
	nowBegins = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	nowSteps  = nowBegins + "\tsec += *clockAhead\n"
)

// overlay writes what go build -overlay needs to replace time.Now into a directory, and returns its file.
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
	replaced := map[string]string{}
	for name, content := range map[string]string{"time.go": strings.Replace(string(text), nowBegins, nowSteps, 1), "step.go": stepSource} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return "", err
		}
		replaced[filepath.Join(src, name)] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o644)
}
