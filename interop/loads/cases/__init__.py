"""The loads, by topic. Names and their order are those of the table in docs/performance.md."""

from cases import bodies, cached, connections, files, filters, http2, settings, upstreams, waiting


def measured():
    """The loads of the table."""
    topics = (files, connections, http2, upstreams, bodies, cached, filters, settings)
    return [case for topic in topics for case in topic.cases()]


def for_memory():
    """The loads that are only looked at for memory."""
    return waiting.cases()
