package progress

// Changes tells errors that are new from those that were reported before: a condition that persists is logged once. The
// zero value has reported nothing.
type Changes struct{ last string }

// New reports whether err is an error, and another one than last time.
func (c *Changes) New(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed := text != c.last
	c.last = text
	return changed && text != ""
}
