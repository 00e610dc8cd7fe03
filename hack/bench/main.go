// Command bench measures what a pod pays for the CNI plugins before they do any work: their size, and the time and memory of
// one run that answers VERSION. The first row is the floor: a Go program that does nothing.
//
//	bench -bin ../bin -runs 200
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

var plugins = []string{"calico", "calico-ipam", "portmap", "bandwidth", "loopback"}

const emptyProgram = "package main\n\nfunc main() {}\n"

// versionRequest is what every plugin answers without a configuration.
const versionRequest = `{"cniVersion":"1.0.0"}`

func main() {
	bin := flag.String("bin", "bin", "directory of the programs")
	runs := flag.Int("runs", 200, "runs of each program")
	flag.Parse()
	if err := run(*bin, *runs); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(bin string, runs int) error {
	dir, err := os.MkdirTemp("", "tortie-bench-")
	if err != nil {
		return fmt.Errorf("making a working directory: %w", err)
	}
	defer os.RemoveAll(dir)
	floor, err := buildFloor(dir)
	if err != nil {
		return err
	}
	fmt.Printf("%-14s %9s %10s %10s %9s   (%d runs of VERSION each)\n", "program", "size MB", "median ms", "p99 ms", "RSS MB", runs)
	programs := []string{floor}
	for _, name := range plugins {
		programs = append(programs, filepath.Join(bin, name))
	}
	for _, program := range programs {
		if err := measure(program, runs); err != nil {
			return err
		}
	}
	return nil
}

func buildFloor(dir string) (string, error) {
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(emptyProgram), 0o600); err != nil {
		return "", fmt.Errorf("writing the empty program: %w", err)
	}
	floor := filepath.Join(dir, "(empty)")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", floor, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the empty program: %w\n%s", err, out)
	}
	return floor, nil
}

func measure(program string, runs int) error {
	info, err := os.Stat(program)
	if err != nil {
		return fmt.Errorf("finding program: %w (run `make build`)", err)
	}
	times := make([]time.Duration, 0, runs)
	var rss int64
	for range runs {
		cmd := exec.Command(program)
		cmd.Env = []string{"CNI_COMMAND=VERSION"}
		cmd.Stdin = bytes.NewReader([]byte(versionRequest))
		start := time.Now()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("running %s: %w", program, err)
		}
		times = append(times, time.Since(start))
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			rss = max(rss, usage.Maxrss)
		}
	}
	slices.Sort(times)
	fmt.Printf("%-14s %9.1f %10.2f %10.2f %9.1f\n", filepath.Base(program), float64(info.Size())/1e6,
		milliseconds(times[len(times)/2]), milliseconds(times[len(times)*99/100]), float64(rss)/1024)
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
