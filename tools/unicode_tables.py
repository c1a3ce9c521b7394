"""What the writers of tables of characters share: runs of code points, and rows of C."""


def ranges(points):
    """Neighbours as [first, last]."""
    out = []
    for point in points:
        if out and point == out[-1][1] + 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def table(kind, name, rows):
    """static const KIND NAME[], in lines of at most 100 characters."""
    lines, line = [], "   "
    for row in rows:
        if len(line) + len(row) + 2 > 100:
            lines.append(line)
            line = "   "
        line += " " + row + ","
    return "static const %s %s[] = {\n%s\n};\n" % (kind, name, "\n".join(lines + [line]))


def range_table(name, points):
    return table("wefti_range", name, ("{0x%X, 0x%X}" % tuple(r) for r in ranges(points)))


def header(about, tool, guard, includes, body):
    """A whole header of tables."""
    return """/* %s
 * Written by tools/%s; do not edit. */
#ifndef %s
#define %s

%s
/* clang-format off */
%s/* clang-format on */

#endif""" % (about, tool, guard, guard, includes, body)
