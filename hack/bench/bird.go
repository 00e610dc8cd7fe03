package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/thread"
)

// bird is a running BIRD 2.
type bird struct {
	cmd    *exec.Cmd
	log    *bytes.Buffer
	socket string
}

// startBird runs BIRD in a thread's namespaces, with its files in dir.
func startBird(t *thread.Thread, dir, config string) (*bird, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	b := &bird{socket: filepath.Join(dir, "ctl"), log: &bytes.Buffer{}}
	b.cmd = exec.Command("bird", "-f", "-c", file, "-s", b.socket, "-P", filepath.Join(dir, "pid"))
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	if err := t.Do(b.cmd.Start); err != nil {
		return nil, fmt.Errorf("start BIRD 2: %w (run `make deps`)", err)
	}
	return b, nil
}

// end stops BIRD; a nil receiver is allowed.
func (b *bird) end() {
	if b != nil {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
	}
}

// ask sends a command to BIRD's control socket and returns the reply, whose last line begins with a code and a space.
func (b *bird) ask(command string) (string, error) {
	conn, err := net.DialTimeout("unix", b.socket, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	if _, err := r.ReadString('\n'); err != nil { // banner
		return "", err
	}
	if _, err := fmt.Fprintln(conn, command); err != nil {
		return "", err
	}
	var answer strings.Builder
	for {
		line, err := r.ReadString('\n')
		answer.WriteString(line)
		if err != nil {
			return answer.String(), err
		}
		if len(line) > 4 && line[4] == ' ' && line[0] >= '0' && line[0] <= '9' {
			if line[0] >= '8' {
				return answer.String(), errors.New("BIRD: " + strings.TrimSpace(line))
			}
			return answer.String(), nil
		}
	}
}

// established waits until a protocol of BIRD is established.
func (b *bird) established(ctx context.Context, protocol string) error {
	var last string
	for {
		text, err := b.ask("show protocols " + protocol)
		if strings.Contains(text, "Established") {
			return nil
		}
		last = fmt.Sprint(strings.TrimSpace(text), err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("BGP session: %w: %s\n%s", context.Cause(ctx), last, b.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
