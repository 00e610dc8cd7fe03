package progress

// Changes distinguishes new errors from the one reported last, so that a lasting condition is logged once. The zero
// value has reported nothing.
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
