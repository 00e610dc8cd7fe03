// Package nodestatus defines the agent's answer on /status, and how people and programs read it: the commands `node
// status`, `node peers` and `node routes`. It knows neither the agent nor the kernel: a Report is plain data, and its
// text is a function of it alone.
package nodestatus
