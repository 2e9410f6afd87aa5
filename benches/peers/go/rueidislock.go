package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislock renews leases by itself and has no lock handles. All workers share one Locker.
type rueidisPeer struct {
	url    string
	locker rueidislock.Locker
}

// newRueidis uses the defaults, with loop tracking. With NoLoopTracking, as in the example of the
// README, a wait for a free lock can hang. A validity of 0 stands for the default of 5 s.
func newRueidis(url string, validity time.Duration) (peer, error) {
	option, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: option, KeyMajority: 1, KeyValidity: validity,
	})
	return &rueidisPeer{url, locker}, err
}

func (p *rueidisPeer) handle(name string, _ bool) handle {
	return &rueidisHandle{locker: p.locker, name: name}
}

func (p *rueidisPeer) renewing(lease time.Duration) (peer, error) { return newRueidis(p.url, lease) }
func (p *rueidisPeer) hasHandles() bool                           { return false }
func (p *rueidisPeer) close()                                     { p.locker.Close() }

// watch counts script calls at the server, because the library does not report when a worker
// waits.
func (p *rueidisPeer) watch(count int) (func() (bool, error), error) {
	before, err := p.scripts()
	return func() (bool, error) {
		after, err := p.scripts()
		return after-before >= count, err
	}, err
}

// scripts returns the number of script calls of the server. Each attempt is one.
func (p *rueidisPeer) scripts() (calls int, err error) {
	client := p.locker.Client()
	info, err := client.Do(context.Background(), client.B().Info().Section("commandstats").Build()).ToString()
	for line := range strings.Lines(info) {
		if rest, found := strings.CutPrefix(line, "cmdstat_evalsha:"); found {
			_, err = fmt.Sscanf(rest, "calls=%d", &calls)
		}
	}
	return calls, err
}

type rueidisHandle struct {
	locker rueidislock.Locker
	name   string
	held   context.Context // the library ends it when the lock is lost
	cancel context.CancelFunc
}

func (h *rueidisHandle) acquire(ctx context.Context) (err error) {
	h.held, h.cancel, err = h.locker.WithContext(ctx, h.name)
	return err
}

func (h *rueidisHandle) release() error {
	lost := h.held.Err()
	h.cancel()
	return lost
}

func (h *rueidisHandle) ask(asked func()) error {
	asked() // too early by a little: watch checks the server
	return h.acquire(context.Background())
}
