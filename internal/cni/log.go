package cni

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
)

// openLog returns a logger to standard error, which the runtime keeps, and to the configured file. Standard output belongs
// to the result. Every line names the plugin, the container and the pod. A file that cannot be opened is no reason to leave
// a pod without a network: it is said once.
func openLog(c *netConf, plugin string, args *skel.CmdArgs) (*slog.Logger, func()) {
	out, done := io.Writer(os.Stderr), func() {}
	if c.LogFilePath != "" {
		f, err := openLogFile(c.LogFilePath)
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

func openLogFile(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
}

// logLevel reads a level; like Calico it takes what it does not know for info.
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
