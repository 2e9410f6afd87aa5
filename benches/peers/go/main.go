// Benchmark driver for rueidislock and redsync; ../README.md is its contract.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A peer is a connected lock library.
type peer interface {
	// handle returns the handle by which a worker acquires and releases the named lock. If
	// `patient`, its lease outlasts the benchmark.
	handle(name string, patient bool) handle
	// renewing connects a client that renews leases of this length.
	renewing(lease time.Duration) (peer, error)
	// hasHandles reports whether the library has lock handles.
	hasHandles() bool
	// watch returns a function that reports whether `count` workers have asked for a lock since.
	watch(count int) (func() (bool, error), error)
	close()
}

type handle interface {
	// acquire waits for the lock. It may return an error after the end of ctx.
	acquire(ctx context.Context) error
	// release returns an error if the lock was lost.
	release() error
	// ask calls asked after its first attempt, and then waits for the lock.
	ask(asked func()) error
}

var (
	errUnsupported = errors.New("unsupported")

	// The module of each library, and the function that connects.
	contenders = map[string]struct {
		module  string
		connect func(url string) (peer, error)
	}{
		"rueidislock": {"github.com/redis/rueidis", func(url string) (peer, error) { return newRueidis(url, 0) }},
		"redsync":     {"github.com/go-redsync/redsync/v4", newRedsync},
	}
)

func main() {
	if len(os.Args) != 3 {
		fail(errors.New("usage: driver CONTENDER URL"))
	}
	contender, known := contenders[os.Args[1]]
	if !known {
		fmt.Println("unsupported no such contender")
		return
	}
	d := driver{connect: func() (peer, error) { return contender.connect(os.Args[2]) }}
	var err error
	if d.peer, err = d.connect(); err != nil {
		fail(err)
	}
	fmt.Println("ready", os.Args[1], version(contender.module))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			words = []string{""}
		}
		if words[0] == "quit" {
			break
		}
		answer, err := d.obey(words[0], parse(words[1:]))
		switch {
		case errors.Is(err, errUnsupported):
			answer = err.Error()
		case err != nil:
			answer = "failed " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
	d.peer.close()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "unknown"
}

type arguments map[string]string

func parse(words []string) arguments {
	args := arguments{}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		args[name] = value
	}
	return args
}

// number returns a number, or 0 for a missing argument.
func (a arguments) number(name string) int {
	n, _ := strconv.Atoi(a[name])
	return n
}

func (a arguments) millis(name string) time.Duration {
	return time.Duration(a.number(name)) * time.Millisecond
}

// lock returns the name of the lock of worker i.
func (a arguments) lock(i int) string {
	if a.number("shared") == 1 {
		return a["locks"]
	}
	return a["locks"] + ":" + strconv.Itoa(i)
}

type driver struct {
	connect func() (peer, error)
	peer    peer
	records [][]uint64 // of the last pairs, by worker

	holder peer // of hold and wait
	held   []handle

	workers  sync.WaitGroup // of wait
	errors   atomic.Int64
	mishap   atomic.Value // the first of the errors
	retained []handle     // of handles
}

func (d *driver) obey(command string, args arguments) (string, error) {
	switch command {
	case "pairs":
		return d.pairs(args)
	case "write":
		return "written", d.write(args["file"])
	case "hold":
		return d.hold(args)
	case "drop":
		lost := d.release()
		return fmt.Sprintf("dropped lost=%d", lost), nil
	case "wait":
		return d.wait(args)
	case "free":
		return d.free()
	case "handles":
		return d.handles(args)
	case "forget":
		d.retained = nil
		return "forgotten", nil
	case "start":
		return d.start(args.number("count"))
	}
	return "", errUnsupported
}

func (d *driver) pairs(args arguments) (string, error) {
	threads, think := args.number("threads"), uint64(args.number("think_us"))*1000
	d.records = make([][]uint64, threads)
	var failures atomic.Int64
	var workers sync.WaitGroup
	ctx, over := context.WithCancel(context.Background())
	begin := make(chan struct{})
	for i := range threads {
		h := d.peer.handle(args.lock(i), false)
		workers.Go(func() {
			var records []uint64
			<-begin
			for ctx.Err() == nil {
				before := now()
				if err := h.acquire(ctx); err != nil {
					if ctx.Err() == nil {
						failures.Add(1)
					}
					continue
				}
				acquired := now()
				releasing := now()
				if err := h.release(); err != nil {
					// At the end of ctx, the library gives up a lock that it has just acquired.
					if ctx.Err() == nil {
						failures.Add(1)
					}
					continue
				}
				released := now()
				records = append(records, uint64(i), before, acquired, releasing, released)
				for think > 0 && now() < released+think {
				}
			}
			d.records[i] = records
		})
	}
	close(begin)
	time.Sleep(args.millis("millis"))
	over()
	workers.Wait()
	count := 0
	for _, records := range d.records {
		count += len(records) / 5
	}
	return fmt.Sprintf("done pairs=%d errors=%d", count, failures.Load()), nil
}

func (d *driver) write(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, records := range d.records {
		if err := binary.Write(file, binary.LittleEndian, records); err != nil {
			return err
		}
	}
	return file.Close()
}

func (d *driver) hold(args arguments) (string, error) {
	holder, err := d.peer.renewing(args.millis("lease_ms"))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("holding count=%d", args.number("count")), d.take(holder, args, args.number("count"))
}

// take acquires the first locks with a client that release closes.
func (d *driver) take(holder peer, args arguments, count int) error {
	d.holder = holder
	for i := range count {
		h := holder.handle(args.lock(i), true)
		if err := h.acquire(context.Background()); err != nil {
			d.release()
			return err
		}
		d.held = append(d.held, h)
	}
	return nil
}

// release releases the locks of take and returns the number of lost ones.
func (d *driver) release() (lost int) {
	for _, h := range d.held {
		if h.release() != nil {
			lost++
		}
	}
	d.held = nil
	if d.holder != nil {
		d.holder.close()
		d.holder = nil
	}
	return lost
}

func (d *driver) wait(args arguments) (string, error) {
	count := args.number("count")
	holder, err := d.connect()
	if err != nil {
		return "", err
	}
	taken := count
	if args.number("shared") == 1 {
		taken = 1
	}
	if err := d.take(holder, args, taken); err != nil {
		return "", err
	}
	settled, err := d.peer.watch(count)
	if err != nil {
		return "", err
	}
	d.errors.Store(0)
	var asked atomic.Int64
	for i := range count {
		h := d.peer.handle(args.lock(i), false)
		d.workers.Go(func() {
			err := h.ask(func() { asked.Add(1) })
			if err == nil {
				err = h.release()
			}
			if err != nil {
				d.mishap.Store(err.Error())
				d.errors.Add(1)
			}
		})
	}
	for {
		done := asked.Load() == int64(count)
		if done {
			if done, err = settled(); err != nil {
				return "", err
			}
		}
		if d.errors.Load() > 0 {
			d.release()
			d.workers.Wait()
			return "", fmt.Errorf("%d of %d did not wait: %v", d.errors.Load(), count, d.mishap.Load())
		}
		if done {
			return fmt.Sprintf("waiting count=%d", count), nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (d *driver) free() (string, error) {
	begun := time.Now()
	lost := d.release()
	d.workers.Wait()
	return fmt.Sprintf("drained nanos=%d errors=%d", time.Since(begun).Nanoseconds(), int(d.errors.Load())+lost), nil
}

func (d *driver) handles(args arguments) (string, error) {
	if !d.peer.hasHandles() {
		return "", errUnsupported
	}
	count := args.number("count")
	d.retained = make([]handle, count)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := time.Now()
	for i := range d.retained {
		d.retained[i] = d.peer.handle(args.lock(i), false)
	}
	nanos := time.Since(begun).Nanoseconds()
	runtime.ReadMemStats(&after)
	return fmt.Sprintf("handles nanos=%d heap=%d", nanos, after.TotalAlloc-before.TotalAlloc), nil
}

func (d *driver) start(count int) (string, error) {
	begun := time.Now()
	for range count {
		p, err := d.connect()
		if err != nil {
			return "", err
		}
		h := p.handle("peers:start", false)
		if err := h.acquire(context.Background()); err != nil {
			return "", err
		}
		if err := h.release(); err != nil {
			return "", err
		}
		p.close()
	}
	return fmt.Sprintf("started nanos=%d", time.Since(begun).Nanoseconds()), nil
}

// now returns CLOCK_MONOTONIC in nanoseconds, which package time does not expose.
func now() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return uint64(t.Nano())
}
