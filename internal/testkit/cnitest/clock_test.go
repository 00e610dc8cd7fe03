package cnitest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// probe prints its clock, and for how long it has slept by that clock.
const probe = `package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	before := time.Now()
	fmt.Println(before.Unix())
	var line string
	fmt.Scanln(&line) // the test steps the clock
	after := time.Now()
	fmt.Println(after.Unix(), after.Sub(before) < time.Minute, after.Round(0).Sub(before.Round(0)) > time.Hour)
	os.Stdout.Close()
}
`

// A running program observes the step of its clock; durations are not affected.
func TestStepClock(t *testing.T) {
	dir := t.TempDir()
	list, err := overlay(dir)
	errtest.Must(t, err)
	source, program, clock := filepath.Join(dir, "main.go"), filepath.Join(dir, "probe"), filepath.Join(dir, "clock")
	errtest.Must(t, os.WriteFile(source, []byte(probe), 0o600))
	if out, err := exec.Command("go", "build", "-overlay="+list, "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	errtest.Must(t, StepClock(clock, -10*time.Minute))
	cmd := exec.Command(program)
	cmd.Env = []string{ClockSetting(clock)}
	stdin, err := cmd.StdinPipe()
	errtest.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	errtest.Must(t, err)
	start := time.Now()
	errtest.Must(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	behind := lines.Text()
	errtest.Must(t, StepClock(clock, 2*time.Hour))
	stdin.Close()
	lines.Scan()
	errtest.Must(t, cmd.Wait())
	first, err := time.ParseDuration(behind + "s")
	errtest.Must(t, err)
	if off := first - time.Duration(start.Unix())*time.Second; off > -9*time.Minute || off < -11*time.Minute {
		t.Errorf("ten minutes behind: %v", off)
	}
	if !strings.HasSuffix(lines.Text(), " true true") {
		t.Errorf("after the step: %q", lines.Text())
	}
}
