/* What it costs to hand a write with fdatasync over to another thread, or to io_uring. docs/decisions/0038 rests on it.
 *
 *     cc -O2 -o /tmp/commit_hop scripts/commit_hop.c -lpthread && /tmp/commit_hop none|inline|thread|uring|link RATE FOLDER
 *
 * An event loop (epoll) begins RATE operations a second, 8,000 in all, one at a time. Each appends 300 bytes to a file in FOLDER
 * and calls fdatasync:
 *
 *     none    nothing: the cost of the loop
 *     inline  by the loop itself, which serves nobody meanwhile
 *     thread  by another thread, which is woken by a condition and answers through an eventfd: as kvorum does
 *     uring   the loop appends; io_uring syncs, and answers through the eventfd
 *     link    io_uring does both, linked
 *
 * Printed is the CPU time of the whole process per operation, with the kernel's workers for io_uring, which count as its threads. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { OPERATIONS = 8000, BYTES = 300, ENTRIES = 8 };

static int file, done;
static char bytes[BYTES];

static void check(int is_right, const char *what) {
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void append(void) { check(write(file, bytes, BYTES) == BYTES, "append"); }

/* The thread. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static int is_queued;

static void *commit(void *unused) {
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!is_queued)
            pthread_cond_wait(&arrived, &mutex);
        is_queued = 0;
        pthread_mutex_unlock(&mutex);
        append();
        check(fdatasync(file) == 0, "fdatasync");
        uint64_t one = 1;
        check(write(done, &one, 8) == 8, "eventfd");
    }
    return NULL;
}

static void hand_over(void) {
    pthread_mutex_lock(&mutex);
    is_queued = 1;
    pthread_cond_signal(&arrived);
    pthread_mutex_unlock(&mutex);
}

/* io_uring, without a library. */
static int ring;
static unsigned *submit_tail, *submit_mask, *submit_array, *complete_head, *complete_tail, *complete_mask;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *completions;

static char *map(size_t size, off_t offset) {
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static void open_ring(void) {
    struct io_uring_params params = {0};
    ring = syscall(SYS_io_uring_setup, ENTRIES, &params);
    check(ring >= 0, "io_uring_setup");
    char *submit = map(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *complete = map(params.cq_off.cqes + params.cq_entries * sizeof *completions, IORING_OFF_CQ_RING);
    entries = (struct io_uring_sqe *)map(params.sq_entries * sizeof *entries, IORING_OFF_SQES);
    submit_tail = (unsigned *)(submit + params.sq_off.tail);
    submit_mask = (unsigned *)(submit + params.sq_off.ring_mask);
    submit_array = (unsigned *)(submit + params.sq_off.array);
    complete_head = (unsigned *)(complete + params.cq_off.head);
    complete_tail = (unsigned *)(complete + params.cq_off.tail);
    complete_mask = (unsigned *)(complete + params.cq_off.ring_mask);
    completions = (struct io_uring_cqe *)(complete + params.cq_off.cqes);
    check(syscall(SYS_io_uring_register, ring, IORING_REGISTER_EVENTFD, &done, 1) == 0, "io_uring_register");
}

static struct io_uring_sqe *next_entry(unsigned *tail) {
    unsigned place = (*tail)++ & *submit_mask;
    submit_array[place] = place;
    memset(&entries[place], 0, sizeof *entries);
    entries[place].fd = file;
    return &entries[place];
}

static void submit(int appends) {
    unsigned tail = *submit_tail;
    if (appends) {
        struct io_uring_sqe *entry = next_entry(&tail);
        entry->opcode = IORING_OP_WRITE;
        entry->addr = (uint64_t)(uintptr_t)bytes;
        entry->len = BYTES;
        entry->off = -1;
        entry->flags = IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
    }
    struct io_uring_sqe *entry = next_entry(&tail);
    entry->opcode = IORING_OP_FSYNC;
    entry->fsync_flags = IORING_FSYNC_DATASYNC;
    __atomic_store_n(submit_tail, tail, __ATOMIC_RELEASE);
    check(syscall(SYS_io_uring_enter, ring, appends ? 2 : 1, 0, 0, NULL, 0) >= 0, "io_uring_enter");
}

static void take_completions(void) {
    unsigned head = *complete_head;
    for (; head != __atomic_load_n(complete_tail, __ATOMIC_ACQUIRE); head++)
        check(completions[head & *complete_mask].res >= 0, "an operation of io_uring");
    __atomic_store_n(complete_head, head, __ATOMIC_RELEASE);
}

static int is_longer(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **words) {
    check(count == 4 && atol(words[2]) > 0, "usage: commit_hop none|inline|thread|uring|link RATE FOLDER");
    const char *mode = words[1];
    int is_inline = !strcmp(mode, "inline"), is_thread = !strcmp(mode, "thread"), is_none = !strcmp(mode, "none");
    int is_link = !strcmp(mode, "link"), is_ring = is_link || !strcmp(mode, "uring");
    char path[4096];
    snprintf(path, sizeof path, "%s/commit_hop.tmp", words[3]);
    file = open(path, O_CREAT | O_TRUNC | O_RDWR | O_APPEND, 0600);
    check(file >= 0, path);
    unlink(path);
    done = eventfd(0, EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), loop = epoll_create1(0);
    struct epoll_event of_timer = {.events = EPOLLIN, .data.fd = timer}, of_done = {.events = EPOLLIN, .data.fd = done};
    epoll_ctl(loop, EPOLL_CTL_ADD, timer, &of_timer);
    epoll_ctl(loop, EPOLL_CTL_ADD, done, &of_done);
    pthread_t thread;
    if (is_thread)
        check(pthread_create(&thread, NULL, commit, NULL) == 0, "thread");
    if (is_ring)
        open_ring();
    struct timespec every = {.tv_nsec = 1000000000 / atol(words[2])};
    struct itimerspec rate = {.it_interval = every, .it_value = every};
    timerfd_settime(timer, 0, &rate, NULL);

    static double took[OPERATIONS];
    double cpu = cpu_seconds(), began = 0;
    int finished = 0, is_busy = 0;
    while (finished < OPERATIONS) {
        struct epoll_event events[2];
        uint64_t value;
        int ready = epoll_wait(loop, events, 2, -1);
        for (int i = 0; i < ready && finished < OPERATIONS; i++) {
            if (read(events[i].data.fd, &value, 8) != 8)
                continue;
            if (events[i].data.fd == timer) {
                if (is_busy)
                    continue;
                began = seconds();
                is_busy = 1;
                if (is_inline)
                    append(), check(fdatasync(file) == 0, "fdatasync");
                else if (is_thread)
                    hand_over();
                else if (is_ring) {
                    if (!is_link)
                        append();
                    submit(is_link);
                }
                if (!is_inline && !is_none)
                    continue;
            } else if (is_ring) {
                take_completions();
            }
            took[finished++] = seconds() - began;
            is_busy = 0;
        }
    }
    cpu = cpu_seconds() - cpu;
    qsort(took, OPERATIONS, sizeof *took, is_longer);
    printf("%-6s %6.1f us of CPU per operation, p50 %4.0f us, p99 %5.0f us\n", mode, cpu / OPERATIONS * 1e6,
           took[OPERATIONS / 2] * 1e6, took[OPERATIONS * 99 / 100] * 1e6);
    return 0;
}
