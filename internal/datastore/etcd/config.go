package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// Config is how to reach an etcd cluster, and the credentials.
type Config struct {
	// Endpoints are the URLs of its members, such as https://10.0.0.1:2379. All have one scheme. Without one, it is https
	// if there is a file below, else http; without a port it is 2379.
	Endpoints []string
	// CAFile holds PEM certificates of the authorities that may sign the members' certificates; empty means the system's
	// authorities.
	CAFile string
	// CertFile and KeyFile are a PEM client certificate and its key.
	CertFile, KeyFile string
	// Username and Password log in, if both are set and the cluster has authentication enabled.
	Username, Password string
}

const (
	defaultPort = "2379"
	schemePlain = "http"
	schemeTLS   = "https"
)

// servers returns the scheme and the host:port of each endpoint.
func (c *Config) servers() (scheme string, servers []string, err error) {
	for _, text := range c.Endpoints {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		s, server, err := c.server(text)
		if err != nil {
			return "", nil, err
		}
		if scheme != "" && s != scheme {
			return "", nil, fmt.Errorf("etcd endpoints: %s and %s are mixed: use one of them", scheme, s)
		}
		scheme, servers = s, append(servers, server)
	}
	if len(servers) == 0 {
		return "", nil, errors.New("etcd endpoints: there is none: name etcd's URLs, such as https://10.0.0.1:2379")
	}
	return scheme, servers, nil
}

func (c *Config) server(text string) (scheme, server string, err error) {
	if !strings.Contains(text, "://") {
		scheme = schemePlain
		if c.CAFile != "" || c.CertFile != "" {
			scheme = schemeTLS
		}
		text = scheme + "://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || (u.Scheme != schemePlain && u.Scheme != schemeTLS) || strings.Trim(u.Path, "/") != "" {
		return "", "", fmt.Errorf("etcd endpoint %q: not a URL such as https://10.0.0.1:2379", redacted(text))
	}
	if u.User != nil {
		return "", "", fmt.Errorf("etcd endpoint %q: a user and password do not belong into the URL", u.Redacted())
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	return u.Scheme, net.JoinHostPort(u.Hostname(), port), nil
}

// redacted leaves out what may be a password.
func redacted(text string) string {
	if _, after, ok := strings.Cut(text, "@"); ok {
		return "…@" + after
	}
	return text
}

// tls returns the TLS configuration for the members; nil for plain HTTP.
func (c *Config) tls(scheme string) (*tls.Config, error) {
	if scheme != schemeTLS {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		data, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd's certificate authority: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("etcd's certificate authority %s: no PEM certificate in it", c.CAFile)
		}
	}
	if c.CertFile != "" || c.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate %q and key %q for etcd: %w", c.CertFile, c.KeyFile, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// lookup is net.Resolver.LookupSRV.
type lookup func(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)

// Discover returns the endpoints in the SRV records of a domain: etcd-client-ssl with TLS, or else etcd-client without,
// as etcd's own client does.
func Discover(ctx context.Context, domain string) ([]string, error) {
	return discover(ctx, net.DefaultResolver.LookupSRV, domain)
}

func discover(ctx context.Context, look lookup, domain string) ([]string, error) {
	var errs []error
	for _, s := range []struct{ service, scheme string }{{"etcd-client-ssl", schemeTLS}, {"etcd-client", schemePlain}} {
		_, records, err := look(ctx, s.service, "tcp", domain)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var endpoints []string
		for _, r := range records {
			host := net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
			endpoints = append(endpoints, s.scheme+"://"+host)
		}
		if len(endpoints) > 0 {
			return endpoints, nil
		}
	}
	return nil, fmt.Errorf("find etcd by the SRV records of %s: %w", domain, errors.Join(append(errs, errors.New("no record"))...))
}
