package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
)

// The packets and limits of one measurement.
const (
	packets     = 25
	packetEvery = 20 * time.Millisecond
	packetSize  = 64
	// lost is the time after which an answer counts as lost.
	lost = time.Second
	// volume is enough for segments of full size in both directions: a path that drops large packets passes none of it.
	volume = 4 << 20
	// patience bounds the wait for the first answer: the other pod may have started later.
	patience = 15 * time.Second
	// transferTime bounds the transfer of the volume.
	transferTime = 20 * time.Second
)

// Result is the measurement towards one address.
type Result struct {
	To netip.Addr `json:"to"`
	// Sent and Answered count small packets; the times are their round-trip times.
	Sent     int           `json:"sent"`
	Answered int           `json:"answered"`
	Min      time.Duration `json:"min"`
	Mean     time.Duration `json:"mean"`
	Max      time.Duration `json:"max"`
	// Bytes is the number of bytes of the transfer that came back, and Took its time, 0 if it failed.
	Bytes int           `json:"bytes"`
	Took  time.Duration `json:"took"`
	// Problem describes the fault; empty if there is none.
	Problem string `json:"problem,omitempty"`
}

// String returns a line for people.
func (r Result) String() string {
	ms := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 2, 64) }
	text := fmt.Sprintf("%s: %d of %d packets answered", r.To, r.Answered, r.Sent)
	if r.Answered > 0 {
		text += fmt.Sprintf(", in %s/%s/%s ms (least/mean/most)", ms(r.Min), ms(r.Mean), ms(r.Max))
	}
	if r.Took > 0 {
		text += fmt.Sprintf("; %d MiB there and back in %s ms", r.Bytes>>20, ms(r.Took))
	}
	if r.Problem != "" {
		text += ": " + r.Problem
	}
	return text
}

// Measure measures against the echo at an address.
func Measure(ctx context.Context, to netip.Addr, port int) Result {
	r := Result{To: to}
	address := net.JoinHostPort(to.String(), strconv.Itoa(port))
	err := r.small(ctx, address)
	if err == nil && r.Answered < r.Sent {
		err = fmt.Errorf("%d packets were lost", r.Sent-r.Answered)
	}
	if r.Answered > 0 {
		err = errors.Join(err, r.large(ctx, address))
	}
	if err != nil {
		r.Problem = err.Error()
	}
	return r
}

// small sends small packets and counts their answers. It begins after a first answer.
func (r *Result) small(ctx context.Context, address string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := firstAnswer(ctx, conn); err != nil {
		r.Sent = 1
		return err
	}
	var sum time.Duration
	for number := range uint64(packets) {
		r.Sent++
		took, err := ask(conn, number+1, lost)
		if err == nil {
			r.Answered++
			sum += took
			r.Max = max(r.Max, took)
			if r.Min == 0 || took < r.Min {
				r.Min = took
			}
		}
		if !wait.Sleep(ctx, packetEvery) {
			return ctx.Err()
		}
	}
	if r.Answered > 0 {
		r.Mean = sum / time.Duration(r.Answered)
	}
	return nil
}

func firstAnswer(ctx context.Context, conn net.Conn) error {
	for deadline := time.Now().Add(patience); ; {
		_, err := ask(conn, 0, lost/4)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer within %v: %w", patience, err)
		}
		if !wait.Sleep(ctx, packetEvery) {
			return ctx.Err()
		}
	}
}

// ask sends a packet with a number and waits for the answer with that number, skipping late answers to earlier packets.
func ask(conn net.Conn, number uint64, wait time.Duration) (time.Duration, error) {
	sent := time.Now()
	packet := binary.BigEndian.AppendUint64(make([]byte, 0, packetSize), number)
	if _, err := conn.Write(packet[:packetSize]); err != nil {
		return 0, err
	}
	if err := conn.SetReadDeadline(sent.Add(wait)); err != nil {
		return 0, err
	}
	buf := make([]byte, packetSize)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return 0, err
		}
		if n == packetSize && binary.BigEndian.Uint64(buf) == number {
			return time.Since(sent), nil
		}
	}
}

// large sends the volume through a connection, and compares it with the answer.
func (r *Result) large(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("small packets pass, and a connection does not: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	text := make([]byte, volume)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(text) // never fails
	start := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(text)
		sent <- err
	}()
	back := make([]byte, volume)
	n, err := io.ReadFull(conn, back)
	r.Bytes = n
	if err = errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("small packets pass, and of %d bytes in large ones %d came back (is the MTU too large for the path?): %w",
			volume, n, err)
	}
	if !bytes.Equal(text, back) {
		return errors.New("the answer differs from the data sent")
	}
	r.Took = time.Since(start)
	return nil
}
