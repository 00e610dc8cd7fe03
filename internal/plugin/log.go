package plugin

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"gopkg.in/natefinch/lumberjack.v2"
)

// openLog returns a logger to standard error, which the runtime keeps, and to the configured file. Standard output
// belongs to the result. Every line names the plugin, the container and the pod. If the file cannot be opened, the verb
// goes on, with one message on standard error.
func openLog(c *netConf, plugin string, args *skel.CmdArgs) (*slog.Logger, func()) {
	out, done := io.Writer(os.Stderr), func() {}
	if c.LogFilePath != "" {
		f, err := openLogFile(c)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: log_file_path: %v\n", plugin, err)
		} else {
			out, done = io.MultiWriter(os.Stderr, f), func() { f.Close() }
		}
	}
	handler := slog.NewTextHandler(out, &slog.HandlerOptions{Level: logLevel(c.LogLevel)})
	log := slog.New(handler).With("plugin", plugin, "container", args.ContainerID)
	if pod, err := parseArgs(args.Args); err == nil {
		log = log.With("pod", string(pod.K8S_POD_NAMESPACE+"/"+pod.K8S_POD_NAME))
	}
	return log, done
}

// Calico's limits of the log file: its size in MB, the age in days and the number of the files that are rotated away.
const (
	maxLogSize  = 100
	maxLogAge   = 30
	maxLogCount = 10
)

// openLogFile returns the log file, which rotates itself. Its mode is Calico's: log collectors may not run as root.
func openLogFile(c *netConf) (io.WriteCloser, error) {
	if err := os.MkdirAll(filepath.Dir(c.LogFilePath), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(c.LogFilePath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return &lumberjack.Logger{
		Filename:   c.LogFilePath,
		MaxSize:    cmp.Or(c.LogFileMaxSize, maxLogSize),
		MaxAge:     cmp.Or(c.LogFileMaxAge, maxLogAge),
		MaxBackups: cmp.Or(c.LogFileMaxCount, maxLogCount),
	}, nil
}

// logLevel parses a level; any other text means info, as in Calico.
func logLevel(text string) slog.Level {
	switch strings.ToLower(text) {
	case "debug":
		return slog.LevelDebug
	case "warning", "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	}
	return slog.LevelInfo
}
