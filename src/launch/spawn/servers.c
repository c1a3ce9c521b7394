/* Servers of parameters, beside the ranks of one host (--servers). They start before the ranks,
 * which hear where they are (WEFT_SERVERS), and end behind them. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/text.h"
#include "launch/spawn/launch.h"

enum { SERVER_SECONDS = 60, SERVER_LINE = 512 };

/* Its first line says where it is: {"number": 0, "address": "127.0.0.1:4711"}. */
static weft_status read_line(int fd, char line[SERVER_LINE]) {
    size_t used = 0;
    struct pollfd polled = {fd, POLLIN, 0};
    while (used + 1 < SERVER_LINE) {
        if (poll(&polled, 1, SERVER_SECONDS * 1000) == 0)
            WEFT_FAIL(WEFT_E_TIMEOUT, "a server does not begin within %d s", SERVER_SECONDS);
        const ssize_t got = read(fd, line + used, 1);
        if (got < 0 && errno == EINTR) continue;
        WEFT_REQUIRE(got > 0, WEFT_E_PEER, "a server has ended before it began");
        if (line[used] == '\n') break;
        used++;
    }
    line[used] = 0;
    return WEFT_OK;
}

static weft_status read_address(wefti_launch *l, int fd, const char **out) {
    static const wefti_json_limits limits = {.depth = 4, .members = 16, .array_items = 16};
    char line[SERVER_LINE];
    const wefti_json *root;
    WEFT_TRY(read_line(fd, line));
    WEFT_TRY(wefti_json_parse(l->arena, line, (int64_t)strlen(line), &limits, &root));
    const wefti_json *address = wefti_json_get(root, "address");
    WEFT_REQUIRE(address && address->kind == WEFTI_JSON_TEXT, WEFT_E_PEER,
                 "a server does not say where it is: %.100s", line);
    *out = wefti_arena_strdup(l->arena, address->as.text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the address of a server");
    return WEFT_OK;
}

static weft_status spawn_server(wefti_launch *l, const char *program, int number, int output) {
    char place[16], part[16], word[][12] = {"weft", "server", "--json", "--number", "--memory"};
    char *words[] = {word[0], word[1], word[2], word[3], place, word[4], part, NULL};
    char **environment;
    (void)snprintf(place, sizeof place, "%d", number);
    (void)snprintf(part, sizeof part, "%d%%", 100 / l->options->servers);
    WEFT_TRY(wefti_launch_server_settings(l, &environment));
    const wefti_spawn what = {.path = program,
                              .words = words,
                              .environment = environment,
                              .output = output,
                              .errors = STDERR_FILENO};
    WEFT_TRY(wefti_process_start(&what, &l->servers[number]));
    wefti_reaper_add_group(l->reaper, l->servers[number]);
    return WEFT_OK;
}

static weft_status start_server(wefti_launch *l, const char *program, int number,
                                const char **out) {
    int ends[2];
    WEFT_REQUIRE(pipe2(ends, O_CLOEXEC) == 0, WEFT_E_IO, "cannot make a pipe: %s", strerror(errno));
    weft_status status = spawn_server(l, program, number, ends[1]);
    close(ends[1]);
    if (status >= 0) status = read_address(l, ends[0], out);
    close(ends[0]);
    return status < 0 ? wefti_prefix(status, "server %d", number) : WEFT_OK;
}

static weft_status start_all(wefti_launch *l, const char *program) {
    for (int i = 0; i < l->options->servers; i++) {
        const char *address;
        WEFT_TRY(start_server(l, program, i, &address));
        l->server_list =
            i ? wefti_arena_format(l->arena, "%s,%s", l->server_list, address) : address;
        WEFT_REQUIRE(l->server_list, WEFT_E_NOMEM, "no memory for the addresses of servers");
    }
    return WEFT_OK;
}

weft_status wefti_launch_start_servers(wefti_launch *l) {
    const weft_launch_options *o = l->options;
    char *program;
    if (!o->servers) return WEFT_OK;
    WEFT_REQUIRE(o->servers > 0 && o->servers <= WEFTI_SERVERS_MAX, WEFT_E_ARG,
                 "%d servers; %d are the most", o->servers, WEFTI_SERVERS_MAX);
    WEFT_REQUIRE(l->place.hosts == 1 && !o->add && !o->scheduler_elsewhere, WEFT_E_ARG,
                 "servers are started with all processes of a job on one host; on several hosts, "
                 "start each with weft server --listen HOST:PORT --number N, and name them to all "
                 "ranks with --env WEFT_SERVERS=HOST:PORT,...");
    WEFT_NEW_ARRAY(l->servers, pid_t, o->servers);
    WEFT_TRY(wefti_command_find("weft", l->set.commands, o->self, &program));
    const weft_status status = start_all(l, o->self ? o->self : program);
    wefti_free(program);
    return status;
}

/* Nobody needs what they keep. */
void wefti_launch_end_servers(wefti_launch *l) {
    for (int i = 0; l->servers && i < l->options->servers; i++) {
        if (!l->servers[i]) continue;
        (void)kill(-l->servers[i], SIGKILL);
        while (waitpid(l->servers[i], NULL, 0) < 0 && errno == EINTR) continue;
    }
    wefti_free(l->servers);
    l->servers = NULL;
}
