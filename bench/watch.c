/* The cost of the watchdog. Usage: bench/watch [seconds], by default 5.
 *
 * Each transfer records the position of its rank: a count if the transfer was complete at once, a
 * text and a time if the rank had to wait. Each process also has a thread that reports this to the
 * scheduler and listens to it. The program prints:
 * - nanoseconds per transfer for both kinds;
 * - the share of one core that two idle members and their scheduler take together, at the default
 *   heartbeat;
 * - for some numbers of transfers, the length of a step from which both together are under 1 %. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/member/member.h"
#include "launch/scheduler/scheduler.h"

enum { MEMBERS = 2, TIMES = 2000000 };

static wefti_position *position[MEMBERS];
static wefti_member *member[MEMBERS];
static const char *address;

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "bench/watch: %s\n", weft_error_message());
    exit(1);
}

static wefti_secret secret(void) {
    wefti_secret s;
    memset(&s, 7, sizeof s);
    return s;
}

static void *join(void *context) {
    int i = *(int *)context;
    wefti_member_options o = {
        .scheduler = address, .secret = secret(), .rank = i, .size = MEMBERS, .join_seconds = 20};
    check(wefti_position_create(&position[i]));
    check(wefti_member_join(&o, &member[i]));
    wefti_member_watch(member[i], NULL, position[i]);
    return NULL;
}

static void *leave(void *context) {
    (void)wefti_member_close(member[*(int *)context], NULL);
    return NULL;
}

static void all(void *(*body)(void *)) {
    pthread_t thread[MEMBERS];
    int number[MEMBERS];
    for (int i = 0; i < MEMBERS; i++) {
        number[i] = i;
        if (pthread_create(&thread[i], NULL, body, &number[i]) != 0) exit(1);
    }
    for (int i = 0; i < MEMBERS; i++) pthread_join(thread[i], NULL);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Nanoseconds of processor time for one transfer. */
static double transfer_ns(bool waits) {
    double from = cpu_seconds();
    for (int i = 0; i < TIMES; i++) {
        if (waits)
            wefti_position_begin_wait(position[0],
                                      "all_reduce of h.3.attn.c_proj (f32, 768 elements)");
        wefti_position_end_wait(position[0], waits);
    }
    return (cpu_seconds() - from) / TIMES * 1e9;
}

int main(int count, char **words) {
    double seconds = count > 1 ? atof(words[1]) : 5;
    wefti_scheduler_options o = {
        .size = MEMBERS, .secret = secret(), .hosted_by = -1, .join_seconds = 20};
    wefti_scheduler *scheduler;
    check(wefti_scheduler_start(&o, &scheduler));
    address = wefti_scheduler_address(scheduler);
    all(join);
    usleep(200000);
    double from = cpu_seconds();
    int64_t start = wefti_now_ns();
    usleep((useconds_t)(seconds * 1e6));
    double share = (cpu_seconds() - from) / ((double)(wefti_now_ns() - start) * 1e-9);
    double at_once = transfer_ns(false), in_earnest = transfer_ns(true);
    printf("a transfer that is there at once  %.1f ns\n", at_once);
    printf("one that is waited for            %.1f ns\n", in_earnest);
    printf("%d members and a scheduler         %.4f %% of a core\n", MEMBERS, 100 * share);
    for (int transfers = 10; transfers <= 10000; transfers *= 10)
        printf("%5d transfers, all waited for: under 1 %% of a step that takes %.3f ms or longer\n",
               transfers, transfers * in_earnest * 1e-6 / (0.01 - share));
    all(leave);
    for (int i = 0; i < MEMBERS; i++) wefti_position_destroy(position[i]);
    wefti_scheduler_stop(scheduler);
}
