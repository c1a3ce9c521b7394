/* What a launcher tells the scheduler of processes that have ended. One that ends before all ranks
 * have come, with whatever exit code, was never a member whose connection could tell: without a
 * word the others would wait until the time for joining is up. On a host without the scheduler a
 * member that never joins carries that word; it does so beside all else, and the first end is
 * enough. */
#include <stdio.h>

#include "launch/launch_parts.h"

void wefti_launch_end_text(const wefti_launch *l, int local, char out[WEFTI_END_TEXT]) {
    const wefti_process *p = &l->processes[local];
    (void)snprintf(out, WEFTI_END_TEXT, "rank %d (process %d) %s %d", l->place.first_rank + local,
                   (int)p->process, p->signal ? "was ended by signal" : "ended with exit code",
                   p->signal ? p->signal : p->code);
}

static weft_status send_word(wefti_launch *l, int local, const char *text) {
    const weft_launch_options *o = l->options;
    wefti_member_options options = {
        .scheduler = l->scheduler_text,
        .interface = o->interface ? o->interface : l->set.interface,
        .rank = l->place.first_rank + local,
        .size = l->place.size,
        .tls = l->set.tls,
    };
    WEFT_TRY(wefti_secret_read(l->secret, &options.secret));
    weft_status status = wefti_member_report(&options, text, &l->report);
    explicit_bzero(&options.secret, sizeof options.secret);
    return status;
}

void wefti_launch_report(wefti_launch *l, int local) {
    char text[WEFTI_END_TEXT];
    if (l->report) return;
    wefti_launch_end_text(l, local, text);
    if (l->scheduler)
        wefti_scheduler_ended(l->scheduler, l->place.first_rank + local, text);
    else if (send_word(l, local, text) < 0)
        l->report = NULL; /* then the time for joining ends it */
}

/* After a good end the scheduler may be gone already, and nobody misses the word. */
void wefti_launch_report_end(wefti_launch *l) {
    bool good = l->failed < 0 && !l->stopped_by;
    if (l->report) wefti_member_report_end(l->report, good ? 1 : 3, good);
    l->report = NULL;
}
