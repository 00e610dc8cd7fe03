package etcd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// The methods of etcd's gRPC services that are called.
const (
	methodRange        = "/etcdserverpb.KV/Range"
	methodTxn          = "/etcdserverpb.KV/Txn"
	methodCompact      = "/etcdserverpb.KV/Compact"
	methodAuthenticate = "/etcdserverpb.Auth/Authenticate"
)

// gRPC's status codes that mean something here: https://grpc.io/docs/guides/status-codes/
const (
	codeCanceled           = 1
	codeInvalidArgument    = 3
	codeDeadlineExceeded   = 4
	codePermissionDenied   = 7
	codeResourceExhausted  = 8
	codeFailedPrecondition = 9
	codeAborted            = 10
	codeOutOfRange         = 11
	codeInternal           = 13
	codeUnavailable        = 14
	codeDataLoss           = 15
	codeUnauthenticated    = 16
)

// statusError is an answer that is no success.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("%s (gRPC status %d)", e.message, e.code) }

// prefixSize is the size of a message's prefix: a flag for compression, and the length.
const prefixSize = 5

// member is a connection to one member of the cluster.
type member struct {
	http *http.Client
	url  string
}

// unary calls a method that takes one message and returns one:
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
func (m member) unary(ctx context.Context, method, token string, msg message) ([]byte, error) {
	req, err := m.request(ctx, method, token, msg)
	if err != nil {
		return nil, err
	}
	resp, err := m.http.Do(req)
	if err != nil {
		var u *url.Error // which would repeat method and URL
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, err
	}
	if err := status(resp); err != nil {
		return nil, err
	}
	return unframe(data)
}

func (m member) request(ctx context.Context, method, token string, msg message) (*http.Request, error) {
	body := make([]byte, prefixSize, prefixSize+len(msg))
	binary.BigEndian.PutUint32(body[1:], uint32(len(msg)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url+method, bytes.NewReader(append(body, msg...)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", "tortie")
	if deadline, ok := ctx.Deadline(); ok { // etcd gives up then as well
		req.Header.Set("Grpc-Timeout", strconv.FormatInt(max(time.Until(deadline).Milliseconds(), 1), 10)+"m")
	}
	if token != "" {
		req.Header.Set("Token", token)
	}
	return req, nil
}

// status reads how a call went. A call that failed early has its status in the headers.
func status(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("no answer of gRPC but %s: is this an etcd?", resp.Status)
	}
	from := resp.Trailer
	if resp.Header.Get("Grpc-Status") != "" {
		from = resp.Header
	}
	code, err := strconv.Atoi(from.Get("Grpc-Status"))
	if err != nil {
		return errors.New("an answer without gRPC's status: it was cut off, or this is no etcd")
	}
	if code == 0 {
		return nil
	}
	text := from.Get("Grpc-Message")
	if plain, err := url.PathUnescape(text); err == nil {
		text = plain
	}
	return &statusError{code: code, message: text}
}

// unframe returns the one message of an answer. No compression was requested.
func unframe(data []byte) ([]byte, error) {
	if len(data) < prefixSize || data[0] != 0 || uint64(binary.BigEndian.Uint32(data[1:])) != uint64(len(data)-prefixSize) {
		return nil, errors.New("an answer that is not one uncompressed message of gRPC")
	}
	return data[prefixSize:], nil
}
