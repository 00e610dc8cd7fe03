package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
)

// Port is the echo's port, of UDP and TCP.
const Port = 7007

// largest is the largest payload of a UDP datagram.
const largest = 65507

// Serve sends back every datagram, and all bytes of every connection, on the port, until ctx ends.
func Serve(ctx context.Context, port int) error {
	address := net.JoinHostPort("", strconv.Itoa(port))
	var config net.ListenConfig
	packets, err := config.ListenPacket(ctx, "udp", address)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	streams, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return errors.Join(fmt.Errorf("echo: %w", err), packets.Close())
	}
	var serving sync.WaitGroup
	serving.Go(func() { echoPackets(packets) })
	serving.Go(func() { echoStreams(streams) })
	<-ctx.Done()
	err = errors.Join(packets.Close(), streams.Close())
	serving.Wait()
	return err
}

func echoPackets(packets net.PacketConn) {
	buf := make([]byte, largest)
	for {
		n, from, err := packets.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = packets.WriteTo(buf[:n], from) // the client counts a missing answer as lost
		}
	}
}

func echoStreams(streams net.Listener) {
	for {
		conn, err := streams.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // the client notices missing bytes
		}()
	}
}
