/* Where the scheduler of a job listens. */
#include "launch/env/reader.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "launch/socket.h"

weft_status wefti_address_parse(const char *what, const char *text, char host[WEFTI_HOST_TEXT],
                                int *out_port) {
    const char *start = text, *end, *colon;
    if (*text == '[') {
        start = text + 1;
        end = strchr(text, ']');
        colon = end ? end + 1 : NULL;
    } else {
        end = colon = strrchr(text, ':');
    }
    size_t length = end && end > start ? (size_t)(end - start) : 0;
    bool good = length > 0 && length < WEFTI_HOST_TEXT && *colon == ':';
    WEFT_REQUIRE(good && (*text == '[' || colon == strchr(text, ':')), WEFT_E_ARG,
                 "%s is '%.80s', not HOST:PORT; IPv6 addresses are written [::1]:9000", what, text);
    for (size_t i = 0; i < length; i++)
        good = good && isgraph((unsigned char)start[i]) && !strchr("/[]@", start[i]);
    size_t digits = strspn(colon + 1, "0123456789");
    long port = digits > 0 && digits < 6 && !colon[1 + digits] ? strtol(colon + 1, NULL, 10) : 0;
    WEFT_REQUIRE(good && port > 0 && port < 65536, WEFT_E_ARG,
                 "%s is '%.80s', not HOST:PORT with a port from 1 to 65535", what, text);
    memcpy(host, start, length);
    host[length] = '\0';
    *out_port = (int)port;
    return WEFT_OK;
}

weft_status wefti_standby_address_check(const char *what, const char *standby,
                                        const char *scheduler) {
    char host[WEFTI_HOST_TEXT], of_scheduler[WEFTI_HOST_TEXT];
    int port, port_of_scheduler;
    WEFT_TRY(wefti_address_parse(what, standby, host, &port));
    if (!*scheduler) return WEFT_OK;
    WEFT_TRY(wefti_address_parse("the scheduler's address", scheduler, of_scheduler,
                                 &port_of_scheduler));
    WEFT_REQUIRE(port != port_of_scheduler || strcmp(host, of_scheduler) != 0, WEFT_E_ARG,
                 "%s is %.200s, which is the scheduler's own address: a standby scheduler needs "
                 "another host, or another port",
                 what, standby);
    return WEFT_OK;
}

int wefti_port_of(const void *data, size_t bytes) {
    /* Linux gives clients 32768 to 60999; well-known services lie below 10000. */
    return 10000 + (int)(wefti_crc32c(0, data, bytes) % 20000);
}

static weft_status host_and_port(const wefti_env_reader *r, const char *host, const char *port) {
    int number_of = 0;
    if (!wefti_reader_get(r, host) || !wefti_reader_get(r, port)) return WEFT_OK;
    WEFT_TRY(wefti_variable_word(r->v, host, r->out->scheduler_host, WEFTI_HOST_TEXT));
    WEFT_TRY(wefti_reader_number(r, port, 1, 65535, &number_of));
    r->out->scheduler_port = number_of;
    return WEFT_OK;
}

/* From the weakest source to the strongest: later ones replace. The rank table's and Volcano's are
 * there. */
weft_status wefti_read_address(wefti_env_reader *r) {
    const char *own = wefti_reader_get(r, "WEFT_SCHEDULER");
    if (r->claims[WEFTI_START_SLURM].there) wefti_slurm_address(r);
    if (r->claims[WEFTI_START_MINDSPORE].there)
        WEFT_TRY(host_and_port(r, "MS_SCHED_HOST", "MS_SCHED_PORT"));
    bool mindspore = r->claims[WEFTI_START_MINDSPORE].there;
    if (r->claims[WEFTI_START_TORCHRUN].there || r->claims[WEFTI_START_OPEN_MPI].there ||
        r->claims[WEFTI_START_MPICH].there || r->claims[WEFTI_START_VOLCANO].there) {
        bool master = wefti_reader_get(r, "MASTER_ADDR") && wefti_reader_get(r, "MASTER_PORT");
        const char *store = wefti_reader_get(r, "TORCHELASTIC_USE_AGENT_STORE");
        WEFT_TRY(host_and_port(r, "MASTER_ADDR", "MASTER_PORT"));
        /* torchrun itself listens there then. */
        if (master && store && !strcmp(store, "True"))
            r->out->scheduler_port += r->out->scheduler_port < 65535 ? 1 : -1;
        if (master) mindspore = false;
    }
    if (own) {
        WEFT_TRY(wefti_address_parse("WEFT_SCHEDULER", own, r->out->scheduler_host,
                                     &r->out->scheduler_port));
        mindspore = false;
    }
    bool has_scheduler = mindspore || wefti_reader_get(r, "WEFT_LAUNCH");
    r->out->serves = r->out->place.rank == 0 && r->out->place.size > 1 &&
                     r->out->scheduler_port > 0 && !has_scheduler;
    char scheduler[WEFTI_PLACE_TEXT] = "";
    const char *standby = wefti_reader_get(r, "WEFT_STANDBY");
    if (r->out->scheduler_port > 0)
        (void)wefti_host_and_port(r->out->scheduler_host, r->out->scheduler_port, scheduler,
                                  sizeof scheduler);
    if (standby) WEFT_TRY(wefti_standby_address_check("WEFT_STANDBY", standby, scheduler));
    /* Nobody is there to be met, but for a scheduler of its own. */
    if (r->out->place.size == 1 && !has_scheduler && !r->claims[WEFTI_START_MINDSPORE].there)
        r->out->scheduler_port = 0;
    return WEFT_OK;
}
