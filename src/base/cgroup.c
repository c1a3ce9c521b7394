/* Reads the limits of control groups: see cgroup.h.
 *
 * /proc/self/cgroup says in which groups the process is, /proc/self/mountinfo where they are
 * mounted. In a container a mount may begin below the hierarchy's root: then the groups above it
 * cannot be seen. */
#include "base/cgroup.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CGROUP_LINE = 3 * WEFTI_CGROUP_PATH };

/* One hierarchy: version 2 has one, version 1 has one for each controller or a few of them. */
typedef struct hierarchy {
    const char *controller; /* NULL: version 2 */
    char path[WEFTI_CGROUP_PATH];
    char mount[WEFTI_CGROUP_PATH];   /* "": not mounted */
    char mounted[WEFTI_CGROUP_PATH]; /* the group that is mounted there */
} hierarchy;

typedef struct cgroup_reader {
    const char *root;
    wefti_cgroups *out;
} cgroup_reader;

/* --- small files --- */

static FILE *open_file(const char *root, const char *folder, const char *name) {
    char path[2 * WEFTI_CGROUP_PATH];
    const int length = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return length < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* The first line, without its newline. False: there is none. */
static bool read_line(const cgroup_reader *r, const char *folder, const char *name, char *out,
                      int room) {
    FILE *file = open_file(r->root, folder, name);
    const bool any = file && fgets(out, room, file);
    if (file) fclose(file);
    if (any) out[strcspn(out, "\n")] = '\0';
    return any;
}

/* The number at the start of a file; -1: there is none ("max"). */
static double read_number(const cgroup_reader *r, const char *folder, const char *name) {
    char text[64], *end;
    if (!read_line(r, folder, name, text, sizeof text)) return -1;
    const double number = strtod(text, &end);
    return end > text && isfinite(number) ? number : -1;
}

/* The number behind `key` in a file of "key number" lines; -1: there is none. */
static double read_value(const cgroup_reader *r, const char *folder, const char *name,
                         const char *key) {
    FILE *file = open_file(r->root, folder, name);
    char line[256];
    const size_t length = strlen(key);
    double value = -1;
    while (file && value < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') value = strtod(line + length, NULL);
    if (file) fclose(file);
    return value;
}

/* How many numbers "0-3,8,10-11" names; 0: it is no such list. */
static long count_list(const char *text) {
    long count = 0;
    for (char *end; *text; text = end) {
        const long first = strtol(text, &end, 10);
        long last = first;
        if (end == text || first < 0) return 0;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text || last < first || last > 1 << 20) return 0;
        }
        count += last - first + 1;
        if (*end == ',')
            end++;
        else if (*end)
            return 0;
    }
    return count;
}

/* --- the limits of one group --- */

static void take(wefti_cgroup_limit *to, double amount, const char *folder, const char *name) {
    if (!(amount < to->amount)) return;
    to->amount = amount;
    (void)snprintf(to->file, sizeof to->file, "%.4000s/%.64s", folder, name);
}

static void take_cpuset(const cgroup_reader *r, const char *folder, const char *effective) {
    const char *const names[] = {effective, "cpuset.cpus"};
    char text[8192];
    for (int i = 0; i < 2; i++) {
        if (!read_line(r, folder, names[i], text, sizeof text)) continue;
        const long cores = count_list(text);
        if (cores > 0) take(&r->out->cpuset, (double)cores, folder, names[i]);
        if (cores > 0) return;
    }
}

static void take_quota(const cgroup_reader *r, double quota, double period, const char *folder,
                       const char *name) {
    if (quota > 0 && period > 0) take(&r->out->quota, quota / period, folder, name);
}

/* Of a group with a limit: what it has left. Cached files that nobody has read lately go first. */
static void take_free(const cgroup_reader *r, double limit, double used, double cached) {
    if (limit < 0 || used < 0) return;
    const double left = limit - used + (cached > 0 ? cached : 0);
    const double free = left < 0 ? 0 : left < limit ? left : limit;
    if (free < r->out->memory_free) r->out->memory_free = free;
}

/* memory.high kills nothing, but a process beyond it hardly runs. */
static void read_group_2(const cgroup_reader *r, const char *folder) {
    static const char *const limits[] = {"memory.max", "memory.high"};
    char text[64];
    double quota, period;
    for (int i = 0; i < 2; i++) {
        const double limit = read_number(r, folder, limits[i]);
        if (limit < 0) continue;
        take(&r->out->memory, limit, folder, limits[i]);
        take_free(r, limit, read_number(r, folder, "memory.current"),
                  read_value(r, folder, "memory.stat", "inactive_file"));
    }
    if (read_line(r, folder, "cpu.max", text, sizeof text) &&
        sscanf(text, "%lf %lf", &quota, &period) == 2)
        take_quota(r, quota, period, folder, "cpu.max");
    take_cpuset(r, folder, "cpuset.cpus.effective");
}

/* Version 1 writes no limit as the largest number of whole pages. */
static double of_version_1(double limit) {
    return limit >= 0x1p62 ? -1 : limit;
}

/* A group of version 1 may not count what the groups below it use: then its limit is not theirs. */
static bool read_memory_1(const cgroup_reader *r, const char *folder, bool is_own) {
    static const char name[] = "memory.limit_in_bytes";
    if (!is_own && read_number(r, folder, "memory.use_hierarchy") == 0) return false;
    const double limit = of_version_1(read_number(r, folder, name));
    if (limit >= 0) take(&r->out->memory, limit, folder, name);
    take_free(r, limit, read_number(r, folder, "memory.usage_in_bytes"),
              read_value(r, folder, "memory.stat", "total_inactive_file"));
    /* with the groups above the mount */
    const double all =
        of_version_1(read_value(r, folder, "memory.stat", "hierarchical_memory_limit"));
    if (all >= 0) take(&r->out->memory, all, folder, "memory.stat");
    return true;
}

/* Whether the groups above count too. */
static bool read_group(const cgroup_reader *r, const hierarchy *h, const char *folder,
                       bool is_own) {
    if (!h->controller)
        read_group_2(r, folder);
    else if (!strcmp(h->controller, "memory"))
        return read_memory_1(r, folder, is_own);
    else if (!strcmp(h->controller, "cpu"))
        take_quota(r, read_number(r, folder, "cpu.cfs_quota_us"),
                   read_number(r, folder, "cpu.cfs_period_us"), folder, "cpu.cfs_quota_us");
    else
        take_cpuset(r, folder, "cpuset.effective_cpus");
    return true;
}

/* --- hierarchies --- */

static bool names(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (; list; list = strchr(list, ',')) {
        list += *list == ',';
        if (!strncmp(list, word, length) && (list[length] == ',' || !list[length])) return true;
    }
    return false;
}

/* "4:memory:/a/b", of version 2 "0::/a/b" */
static void find_group(const cgroup_reader *r, hierarchy *h) {
    FILE *file = open_file(r->root, "/proc/self", "cgroup");
    char line[CGROUP_LINE];
    while (file && fgets(line, sizeof line, file)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        list++;
        path[strcspn(path, "\n")] = '\0';
        const bool is_this = h->controller ? names(list, h->controller) : !*list;
        if (is_this) (void)snprintf(h->path, sizeof h->path, "%.4000s", path);
    }
    if (file) fclose(file);
}

/* Where `path` goes on behind `start`; NULL: it does not begin with it. */
static const char *below(const char *path, const char *start) {
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == '/') length--;
    if (strncmp(path, start, length) || (path[length] && path[length] != '/')) return NULL;
    return path + length;
}

/* The kernel writes blanks and backslashes of a path as "\040". In place. */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; to++) {
        int value = 0, digits = 0;
        while (*from == '\\' && digits < 3 && from[1 + digits] >= '0' && from[1 + digits] <= '7')
            value = 8 * value + (from[1 + digits++] - '0');
        *to = digits == 3 ? (char)value : *from;
        from += digits == 3 ? 4 : 1;
    }
    *to = '\0';
}

/* Of several mounts, the one that shows the process's group with the most groups above it. */
static void take_mount(hierarchy *h, char *mounted, char *mount) {
    unescape(mounted);
    unescape(mount);
    const bool shows = below(h->path, mounted) != NULL,
               has = *h->mount && below(h->path, h->mounted) != NULL;
    if (*h->mount && (has > shows || (has == shows && strlen(h->mounted) <= strlen(mounted))))
        return;
    (void)snprintf(h->mounted, sizeof h->mounted, "%.4000s", mounted);
    (void)snprintf(h->mount, sizeof h->mount, "%.4000s", mount);
}

/* "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw": the fourth field is the group
 * that is mounted, the fifth where it is; behind the dash are the kind, a source, and options. */
static void find_mount(const cgroup_reader *r, hierarchy *h) {
    FILE *file = open_file(r->root, "/proc/self", "mountinfo");
    char line[CGROUP_LINE];
    while (file && fgets(line, sizeof line, file)) {
        char *field[5] = {0}, *rest = NULL, *behind = strstr(line, " - ");
        if (!behind) continue;
        *behind = '\0';
        field[0] = strtok_r(line, " ", &rest);
        for (int i = 1; i < 5; i++) field[i] = strtok_r(NULL, " ", &rest);
        const char *kind = strtok_r(behind + 3, " \n", &rest),
                   *source = strtok_r(NULL, " \n", &rest), *options = strtok_r(NULL, "\n", &rest);
        if (!field[4] || !kind || !source || !options) continue;
        if (strcmp(kind, h->controller ? "cgroup" : "cgroup2") != 0) continue;
        if (!h->controller || names(options, h->controller)) take_mount(h, field[3], field[4]);
    }
    if (file) fclose(file);
}

/* From the process's own group to the one that is mounted. */
static void climb(const cgroup_reader *r, const hierarchy *h) {
    char folder[2 * WEFTI_CGROUP_PATH];
    const char *rest = below(h->path, h->mounted);
    /* A process that was moved into a container later may have a path that climbs out of it. */
    if (!rest || strstr(rest, "/..")) rest = "";
    (void)snprintf(folder, sizeof folder, "%s%s", h->mount, rest);
    const size_t top = strlen(h->mount);
    bool goes_on = true;
    for (bool is_own = true; goes_on; is_own = false) {
        while (strlen(folder) > top && folder[strlen(folder) - 1] == '/')
            folder[strlen(folder) - 1] = '\0';
        goes_on = read_group(r, h, folder, is_own) && strlen(folder) > top;
        char *last = strrchr(folder + top, '/');
        if (goes_on) *(last ? last : folder + top) = '\0';
    }
}

void wefti_cgroups_read(const char *root, wefti_cgroups *out) {
    static const char *const controllers[] = {NULL, "memory", "cpu", "cpuset"};
    const cgroup_reader r = {.root = root, .out = out};
    hierarchy h;
    *out = (wefti_cgroups){.memory = {.amount = INFINITY},
                           .quota = {.amount = INFINITY},
                           .cpuset = {.amount = INFINITY},
                           .memory_free = INFINITY};
    for (size_t i = 0; i < sizeof controllers / sizeof *controllers; i++) {
        h = (hierarchy){.controller = controllers[i], .path = "/"};
        find_group(&r, &h);
        find_mount(&r, &h);
        /* without a /proc that says so: where containers have it */
        if (!*h.mount && !h.controller) (void)snprintf(h.mount, sizeof h.mount, "/sys/fs/cgroup");
        if (*h.mount) climb(&r, &h);
    }
}

int wefti_cgroups_cores(const wefti_cgroups *groups, int all, int allowed, const char **out_by) {
    double cores = allowed < 1 ? 1 : allowed;
    *out_by = cores < all ? "affinity" : "";
    if (groups->cpuset.amount < cores || (**out_by && groups->cpuset.amount <= cores)) {
        cores = groups->cpuset.amount;
        *out_by = groups->cpuset.file;
    }
    if (groups->quota.amount < cores) {
        cores = ceil(groups->quota.amount);
        *out_by = groups->quota.file;
    }
    return (int)cores;
}
