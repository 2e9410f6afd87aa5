package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	adapter "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsync has leases of 8 s by default and does not renew them.
type redsyncPeer struct {
	client *redis.Client
	sync   *redsync.Redsync
}

func newRedsync(url string) (peer, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	return &redsyncPeer{client, redsync.New(adapter.NewPool(client))}, nil
}

func (p *redsyncPeer) handle(name string, patient bool) handle {
	if patient {
		return redsyncHandle{p.sync.NewMutex(name, redsync.WithExpiry(time.Hour))}
	}
	return redsyncHandle{p.sync.NewMutex(name)}
}

func (p *redsyncPeer) renewing(time.Duration) (peer, error) { return nil, errUnsupported }
func (p *redsyncPeer) hasHandles() bool                     { return true }
func (p *redsyncPeer) close()                               { p.client.Close() }

func (p *redsyncPeer) watch(int) (func() (bool, error), error) {
	return func() (bool, error) { return true, nil }, nil
}

type redsyncHandle struct{ mutex *redsync.Mutex }

// acquire calls Lock again when it gives up after 32 tries.
func (h redsyncHandle) acquire(ctx context.Context) error {
	for {
		err := h.mutex.Lock()
		if err == nil || !isTaken(err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed)
}

func (h redsyncHandle) release() error {
	_, err := h.mutex.Unlock()
	return err
}

func (h redsyncHandle) ask(asked func()) error {
	err := h.mutex.TryLock()
	asked()
	for err != nil { // Lock also returns errors under overload
		err = h.mutex.Lock()
	}
	return nil
}
