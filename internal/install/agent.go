package install

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
)

const (
	askAgent  = 100 * time.Millisecond // the request stays on this node
	agentTime = 2 * time.Second
	agentLate = time.Minute // from then on an Event reports it
)

// agentServes returns a channel that is closed once this node's agent serves: if a runtime found the conflist earlier,
// it would start pods that reach no other node.
func (i *Installer) agentServes(ctx context.Context) <-chan struct{} {
	serves := make(chan struct{})
	go func() {
		start, pause := time.Now(), progress.First
		next := pause
		for {
			err := askReadiness(ctx, i.cfg.AgentReadyURL)
			if err == nil {
				close(serves)
				return
			}
			if waited := time.Since(start); waited >= next {
				pause = progress.Next(pause)
				next = waited + pause
				i.sayAgentIsLate(err, waited.Round(time.Second))
			}
			if !wait.Sleep(ctx, askAgent) {
				return
			}
		}
	}()
	return serves
}

func (i *Installer) sayAgentIsLate(err error, waited time.Duration) {
	i.log.Info("waiting for this node's agent before the conflist is written; one that is there already stays", "agent", err, "waited", waited)
	if waited >= agentLate {
		i.warn(eventAgentNotServing,
			fmt.Sprintf("the conflist is not written before this node's agent serves at %s: %v", i.cfg.AgentReadyURL, err))
	}
}

// askReadiness returns nil if the agent's readiness URL answers 200.
func askReadiness(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 200))
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s says %s%s", url, answer.Status, said(text))
}
