package flows

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Path is the HTTP path of records.
const Path = "/flows"

// mostServed bounds the records of an answer.
const mostServed = 1000

// Answer is the answer to GET /flows?after=NUMBER: the records from that number on. Next is the number for the next
// request.
type Answer struct {
	Next    uint64   `json:"next"`
	Records []Record `json:"records"`
}

// Serve writes an Answer. A client follows the records by repeated requests.
func (r *Recorder) Serve(w http.ResponseWriter, q *http.Request) {
	var after uint64
	if text := q.URL.Query().Get("after"); text != "" {
		number, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			http.Error(w, "after: must be the number next of an earlier answer", http.StatusBadRequest)
			return
		}
		after = number
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(r.Answer(after)) // an error means that the client went away
}

// Answer returns the records from a number on.
func (r *Recorder) Answer(after uint64) Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, next := r.ring.after(after, mostServed)
	a := Answer{Next: next, Records: make([]Record, len(found))}
	for i := range found {
		a.Records[i] = found[i].record(r.Node)
	}
	return a
}
