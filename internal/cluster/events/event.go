package events

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tortie-net/tortie/internal/api"
)

// Event is the part of an Event of API version v1 that is used here.
type Event struct {
	api.Meta           `json:"metadata"`
	InvolvedObject     api.ObjectReference `json:"involvedObject"`
	Type               string              `json:"type"`
	Reason             string              `json:"reason"`
	Message            string              `json:"message"`
	Source             Source              `json:"source"`
	ReportingComponent string              `json:"reportingComponent"`
	ReportingInstance  string              `json:"reportingInstance"`
	FirstTimestamp     time.Time           `json:"firstTimestamp"`
	LastTimestamp      time.Time           `json:"lastTimestamp"`
	Count              int                 `json:"count"`
}

// ResourceType implements api.Resource.
func (*Event) ResourceType() api.Type {
	return api.Type{Version: "v1", Kind: "Event", Plural: "events", Namespaced: true}
}

// Source is the component that reports.
type Source struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

// change holds the fields of an Event that a later write changes.
type change struct {
	Count         int       `json:"count,omitempty"`
	LastTimestamp time.Time `json:"lastTimestamp"`
}

const (
	// clusterNamespace has the events about objects that are in no namespace.
	clusterNamespace = "default"
	// MaxMessage is the API server's limit of a message, in bytes.
	MaxMessage = 1024
	// mostJoined is how many texts Join includes.
	mostJoined = 8
	// maxName leaves room for the hash in an Event's name, which may have 253 characters.
	maxName = 200
)

// build returns the Event for a report. Its name is a function of its content: an agent that restarts repeatedly
// continues the Event that it began with, and the number of Events stays. A common Event has the same name from all
// agents.
func (r *Recorder) build(k key, message string, common bool, first, last time.Time, count int) *Event {
	s, o := r.source, k.about
	namespace := o.Namespace
	if namespace == "" {
		namespace = clusterNamespace
	}
	host := s.Host
	if common {
		host = ""
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%s\x00%s", o.Kind, o.UID, k.reason, message, host, s.Component)
	return &Event{
		Meta:           api.Meta{Name: fmt.Sprintf("%s.%016x", cut(strings.ToLower(o.Name), maxName), h.Sum64()), Namespace: namespace},
		InvolvedObject: r.group.Known().Reference(o), Type: "Warning", Reason: k.reason, Message: cut(message, MaxMessage),
		Source: s, ReportingComponent: s.Component, ReportingInstance: s.Host,
		FirstTimestamp: first.UTC().Truncate(time.Second), LastTimestamp: last.UTC().Truncate(time.Second), Count: count,
	}
}

// Join returns one text for one Event: the first of the texts, and the number of the others.
func Join(texts []string) string {
	shown, length := 0, 0
	for shown < min(len(texts), mostJoined) {
		length += len(texts[shown]) + len("; ")
		if shown > 0 && length > MaxMessage-len("; and 1000000 more") {
			break
		}
		shown++
	}
	if more := len(texts) - shown; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(texts[:shown], "; "), more)
	}
	return strings.Join(texts, "; ")
}

// cut shortens a text to limit bytes, between two characters.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	text = text[:limit]
	for len(text) > 0 && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) {
		text = text[:len(text)-1]
	}
	return text
}
