package controllers

import "log/slog"

// repeated logs an error that may come again and again: once, until there is another one or none.
type repeated struct{ last string }

func (r *repeated) warn(log *slog.Logger, text string, err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	if now != "" && now != r.last {
		log.Warn(text, "err", err)
	}
	r.last = now
}
