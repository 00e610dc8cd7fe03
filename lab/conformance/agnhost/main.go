// Command agnhost is Kubernetes' program of that name with the commands that conformance suites of network policy use,
// and its own SCTP server. The original closes an association when it has answered. On a slow machine its client, which
// sends first, then sometimes fails (EPIPE), and an allowed connection counts as refused.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/kubernetes/test/images/agnhost/connect"
	"k8s.io/kubernetes/test/images/agnhost/netexec"
	"k8s.io/kubernetes/test/images/agnhost/pause"
	"k8s.io/kubernetes/test/images/agnhost/porter"
	servehostname "k8s.io/kubernetes/test/images/agnhost/serve-hostname"
)

// servesSCTP begins the names of the variables with porter's SCTP ports; their values are the answers.
const servesSCTP = "SERVE_SCTP_PORT_"

func main() {
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(connect.CmdConnect, netexec.CmdNetexec, pause.CmdPause, patient(porter.CmdPorter), servehostname.CmdServeHostname)
	if root.Execute() != nil {
		os.Exit(1)
	}
}

// patient takes over the SCTP ports of porter.
func patient(porter *cobra.Command) *cobra.Command {
	others := porter.Run
	porter.Run = func(c *cobra.Command, args []string) {
		for _, variable := range os.Environ() {
			name, answer, _ := strings.Cut(variable, "=")
			port, ours := strings.CutPrefix(name, servesSCTP)
			if !ours {
				continue
			}
			os.Unsetenv(name)
			go func() {
				err := serve(port, answer)
				fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
				os.Exit(1)
			}()
		}
		others(c, args)
	}
	return porter
}

// serve answers every client of an SCTP port, until there is an error.
func serve(port, answer string) error {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	listener, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	if err := unix.Bind(listener, &unix.SockaddrInet6{Port: int(number)}); err != nil {
		return fmt.Errorf("bind it: %w", err)
	}
	if err := unix.Listen(listener, unix.SOMAXCONN); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		peer, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			go converse(peer, answer)
		case unix.EINTR, unix.ECONNABORTED:
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// converse answers every message, until the peer ends the association.
func converse(peer int, answer string) {
	defer unix.Close(peer)
	for message := make([]byte, 1024); ; {
		switch n, err := unix.Read(peer, message); {
		case err == unix.EINTR:
		case err != nil || n <= 0:
			return
		default:
			_, _ = unix.Write(peer, []byte(answer)) // from a peer that is gone there is nothing to read either
		}
	}
}
