package netnstest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// Echo sends back the data of a listener's connections, until the test ends.
func Echo(t testing.TB, l net.Listener) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
}

// SendTCP sends one megabyte, more than one window, to an address in another namespace where no socket listens yet. It
// returns an error if less has arrived after ten seconds.
func (n *NS) SendTCP(t testing.TB, to *NS, address string) error {
	t.Helper()
	const size, limit = 1 << 20, 10 * time.Second
	var l net.Listener
	to.Within(t, func() (err error) { l, err = net.Listen("tcp", address); return err })
	defer l.Close()
	arrived := make(chan int64, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		n, _ := io.Copy(io.Discard, conn)
		arrived <- n
	}()
	return n.Do(func() error {
		conn, err := net.DialTimeout("tcp", address, limit)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(limit))
		if _, err := conn.Write(make([]byte, size)); err != nil {
			return err
		}
		conn.(*net.TCPConn).CloseWrite()
		select {
		case got := <-arrived:
			if got != size {
				return fmt.Errorf("%d bytes arrived, want %d", got, size)
			}
			return nil
		case <-time.After(limit):
			return errors.New("not arrived after 10 s")
		}
	})
}
