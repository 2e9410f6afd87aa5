package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislock renews by itself and knows names, not handles. One Locker serves all workers.
type rueidisPeer struct {
	url    string
	locker rueidislock.Locker
}

// newRueidis uses the defaults, that is, loop tracking: with NoLoopTracking, as in the README's
// example, a wait for a free lock can hang. No validity (0) is the default of 5 s.
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

// watch counts at the server: the library does not tell when a worker has begun to wait.
func (p *rueidisPeer) watch(count int) (func() (bool, error), error) {
	before, err := p.scripts()
	return func() (bool, error) {
		after, err := p.scripts()
		return after-before >= count, err
	}, err
}

// scripts is how many scripts the server has run: each request for a lock is one.
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
	held   context.Context // ended by the library when the lock is lost
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
	asked() // almost: watch knows better
	return h.acquire(context.Background())
}
