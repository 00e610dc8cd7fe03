package cnitest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	if err != nil {
		t.Fatal(err)
	}
	source, program, clock := filepath.Join(dir, "main.go"), filepath.Join(dir, "probe"), filepath.Join(dir, "clock")
	if err := os.WriteFile(source, []byte(probe), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay="+list, "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := StepClock(clock, -10*time.Minute); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{ClockSetting(clock)}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	behind := lines.Text()
	if err := StepClock(clock, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	lines.Scan()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	first, err := time.ParseDuration(behind + "s")
	if err != nil {
		t.Fatal(err)
	}
	if off := first - time.Duration(start.Unix())*time.Second; off > -9*time.Minute || off < -11*time.Minute {
		t.Errorf("ten minutes behind: %v", off)
	}
	if !strings.HasSuffix(lines.Text(), " true true") {
		t.Errorf("after the step: %q", lines.Text())
	}
}
