package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// answerTime bounds one request.
const answerTime = 5 * time.Second

// Answers requests the status of the container runtime behind a socket, as the kubelet does, and returns nil if it
// responds. containerd listens before it can respond.
func Answers(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	t := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Protocols.SetUnencryptedHTTP2(true)
	defer t.CloseIdleConnections()
	empty := bytes.NewReader(make([]byte, 5)) // gRPC: not compressed, of length 0
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/runtime.v1.RuntimeService/Status", empty)
	if err != nil {
		return err
	}
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	answer, err := t.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("ask the container runtime: %w", err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return fmt.Errorf("ask the container runtime: %w", err)
	}
	said := func(key string) string { return cmp.Or(answer.Trailer.Get(key), answer.Header.Get(key)) }
	if code := said("Grpc-Status"); code != "0" {
		return fmt.Errorf("the container runtime is not ready: %s (code %s)", said("Grpc-Message"), code)
	}
	return nil
}
